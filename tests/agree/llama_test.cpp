// SPDX-License-Identifier: MIT
// Llama with weights in Hugging Face's names and bf16: the logits and greedy continuations of transformers.
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
  for (index_t t = 0; t < 6; ++t) {
    const auto all = eval(model(tokens));
    const auto last = slice<1>(all, 6 + t, 7 + t);
    const tensor<std::int32_t, extents<dyn, dyn>> next = eval(cast<std::int32_t>(argmax<2>(last)));
    for (index_t b = 0; b < 2; ++b) CHECK(next(b, 0) == continued(b, t));
    tokens = eval(concat<1>(tokens, next));
  }
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
