// SPDX-License-Identifier: MIT
// Llama with Hugging Face's weight names and bf16: logits and greedy continuations agree with transformers'.
// tests/agree/make_llama_data.py writes them.
#include <doctest/doctest.h>

#include <weft/io/tensor_files.hpp>
#include <weft/weft.hpp>

#include "../../examples/llama.hpp"
#include "../compare.hpp"

using namespace weft;

namespace {

template <class Model>
void check(const std::string& name, Model model) {
  const std::string path = std::string(WEFT_TEST_DATA) + "/" + name + ".safetensors";
  io::load(path, state_dict(model), {.convert = true});
  auto tokens = zeros<std::int32_t>(extents<dyn, dyn>{2, 7}),
       continued = zeros<std::int32_t>(extents<dyn, dyn>{2, 6});
  auto logits = zeros<float>(extents<dyn, dyn, dyn>{2, 7, 23});
  io::load(path, {{"tokens", tokens.state()}, {"logits", logits.state()}, {"continued", continued.state()}});
  CHECK(test::matches(eval(model(tokens)), test::oracle::read(logits), {.of_largest = 2e-6}));

  // Whole sequences, token by token, and at the end all at once.
  const tensor<std::int32_t, extents<dyn, dyn>> prompt = tokens;
  llama::decoding next(model);
  auto of_next = next(prompt);
  for (index_t t = 0; t < 6; ++t) {
    const auto all = eval(model(tokens));
    CHECK(test::matches(of_next, test::oracle::read(eval(select<1>(all, 6 + t))), {.of_largest = 2e-6}));
    const tensor<std::int32_t, extents<dyn, dyn>> chosen =
        eval(cast<std::int32_t>(argmax<1>(of_next, keepdim)));
    for (index_t b = 0; b < 2; ++b) CHECK(chosen(b, 0) == continued(b, t));
    tokens = eval(concat<1>(tokens, chosen));
    of_next = next(chosen);
  }
  CHECK(next.positions() == 13);
  llama::decoding in_pieces(model);
  in_pieces(prompt);
  CHECK(test::matches(in_pieces(eval(slice<1>(tokens, 7, 13))), test::oracle::read(of_next),
                      {.of_largest = 2e-6}));
  CHECK_THROWS_AS(in_pieces(eval(slice<1>(tokens, 0, 0))), value_error);
  CHECK_THROWS_AS(in_pieces(eval(slice<0>(tokens, 0, 1))), shape_error);
  CHECK(in_pieces.positions() == 13);
}

}  // namespace

TEST_CASE("Llama: grouped queries, a head of its own") {
  check("llama", llama::causal_lm<>::create(
                     {.layers = 2, .heads = 4, .key_heads = 2, .width = 16, .hidden = 20, .vocabulary = 23}));
}

TEST_CASE(
    "Llama: a tied head, features of heads that are no division of the width, another base and epsilon") {
  check("llama_tied", llama::causal_lm<500'000, per_million<1>>::create({.layers = 2,
                                                                         .heads = 2,
                                                                         .key_heads = 1,
                                                                         .width = 16,
                                                                         .hidden = 20,
                                                                         .vocabulary = 23,
                                                                         .features = 6,
                                                                         .tied = true}));
}

TEST_CASE("Llama: rotary positions that are scaled, kept and in between") {
  constexpr rope_scaling scaling{
      .factor = 8, .low_freq_factor = 0.5, .high_freq_factor = 3, .original_max_position_embeddings = 32};
  check("llama_scaled", llama::causal_lm<100, per_million<10>, scaling>::create({.layers = 2,
                                                                                 .heads = 2,
                                                                                 .key_heads = 2,
                                                                                 .width = 16,
                                                                                 .hidden = 20,
                                                                                 .vocabulary = 23,
                                                                                 .features = 16,
                                                                                 .tied = true}));
}
