// SPDX-License-Identifier: MIT
// A member of a bound model that the program replaces would be neither trained nor saved: steps, saves and
// whole copies refuse it. copy_weights writes into the members instead.
#include <doctest/doctest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/train/weights.hpp>
#include <weft/weft.hpp>

#include "../../elements.hpp"
#include "../../throws_with.hpp"

using namespace weft;
using weft::test::elements_of;
using weft::test::throws_with;

namespace {

struct policy_net {
  linear<3, 5> body;
  linear<5, 2> head;
  batch_normalization<5> norm;
  auto operator()(expression auto x) const { return head(norm(body(x))); }
};
struct agent {
  policy_net net, target;
  std::vector<linear<2, 2>> more;
  std::optional<linear<2, 2>> last;
};

template <class Run>
void train(Run& run, const agent& a) {
  tape steps(run);
  const auto x = randn<float>(extents<4, 3>{}, {.seed = 1}, run.where());
  steps.backward(steps.eval(mean(square(a.net(x)))));
  run.step();
}

}  // namespace

TEST_CASE("a bound model: a replaced, added or removed member is an error that names it") {
  agent a;
  a.more.resize(1);
  adamw optimizer;
  auto run = bind<policy<strategy::data_parallel>>(a, optimizer);
  train(run, a);

  const agent before = a;
  a.target = clone(a.net);
  CHECK(throws_with<usage_error>([&] { train(run, a); },
                                 {"weft: step: ", "target.body.weight", "after bind", "copy_weights"}));
  CHECK(throws_with<usage_error>([&] { run.full(); }, {"weft: full: ", "target.body.weight"}));
  CHECK(throws_with<usage_error>([&] { run.step(1, [&](index_t) { return mean(square(a.net.body.bias)); }); },
                                 {"weft: step: ", "target.body.weight"}));
  CHECK(throws_with<io_error>([&] { save_weights("replaced.safetensors", run); }, {"target.body.weight"}));
  CHECK(throws_with<usage_error>([&] { load_weights("replaced.safetensors", run); }, {"target.body.weight"}));
  a = before;
  a.net.norm.running_mean = clone(a.net.norm.running_mean);
  CHECK(throws_with<usage_error>([&] { train(run, a); }, {"buffer net.norm.running_mean"}));
  a = before;
  a.more.emplace_back();
  CHECK(throws_with<usage_error>([&] { train(run, a); }, {"parameter more.1.weight"}));
  a = before;
  a.last.emplace();
  CHECK(throws_with<usage_error>([&] { train(run, a); }, {"parameter last.weight"}));
  a = before;
  a.more.clear();
  CHECK(throws_with<usage_error>([&] { train(run, a); }, {"removed"}));
  a = before;
  std::swap(a.net.body, a.target.body);
  CHECK(throws_with<usage_error>([&] { train(run, a); }, {"another place"}));
  a = before;
  run.zero_grad();
  train(run, a);
}

TEST_CASE("a bound model: checkpoints refuse a replaced member, in both directions") {
  const std::string at = (std::filesystem::temp_directory_path() / "weft_replaced").string();
  std::filesystem::remove_all(at);
  agent a;
  adamw optimizer;
  auto run = bind<policy<strategy::data_parallel>>(a, optimizer);
  std::optional<checkpointer<decltype(run)>> made;
  made.emplace(at, run);
  checkpointer<decltype(run)>& saves = *made;
  train(run, a);
  saves.save({1});
  saves.finish();
  a.target = clone(a.net);
  CHECK(throws_with<usage_error>([&] { saves.save({2}); }, {"target.body.weight"}));
  CHECK(throws_with<io_error>([&] { saves.load(); }, {"target.body.weight"}));
  made.reset();
  std::filesystem::remove_all(at);
}

TEST_CASE("copy_weights into a bound model: trained further and saved") {
  agent a;
  initialize(a, 3);
  adamw optimizer;
  auto run = bind<policy<strategy::data_parallel>>(a, optimizer);
  train(run, a);
  CHECK(a.target.head.weight.to_vector() != a.net.head.weight.to_vector());
  copy_weights(a.target, a.net);
  CHECK(elements_of(state_dict(a.target)) == elements_of(state_dict(a.net)));
  train(run, a);
  CHECK(elements_of(state_dict(a.target)) != elements_of(state_dict(a.net)));
}
