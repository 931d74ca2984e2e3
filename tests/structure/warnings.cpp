// SPDX-License-Identifier: MIT
// Typical programs with every header whose libraries are available; the tests structure/warnings compile them
// with the warnings that users enable.
#include <iostream>

#include <weft/weft.hpp>

#include <weft/comm/file_store.hpp>
#include <weft/comm/flight_report.hpp>
#include <weft/comm/rpc.hpp>
#include <weft/comm/run_world.hpp>
#include <weft/comm/tcp_store.hpp>
#include <weft/comm/threads.hpp>
#include <weft/gpu/open.hpp>
#include <weft/io/tensor_files.hpp>
#include <weft/onnx/save.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/parallel/expert_parallel.hpp>
#include <weft/parallel/hook.hpp>
#include <weft/parallel/mesh_text.hpp>
#include <weft/parallel/pipeline.hpp>
#include <weft/parallel/schedule/csv.hpp>
#include <weft/parallel/schedule/live.hpp>
#include <weft/parallel/schedule/named.hpp>
#include <weft/parallel/schedule/timeline.hpp>
#include <weft/parallel/stage_timing.hpp>
#include <weft/parallel/strategy.hpp>
#include <weft/parallel/tensor_parallel.hpp>
#include <weft/planner/measure.hpp>
#include <weft/planner/planner.hpp>
#include <weft/train/checkpoint.hpp>
#include <weft/train/idx.hpp>
#include <weft/train/inspect.hpp>
#include <weft/train/line_log.hpp>
#include <weft/train/loader.hpp>
#include <weft/train/progress.hpp>
#include <weft/train/text.hpp>
#include <weft/train/weights.hpp>

#if WEFT_WITH_NCCL
#include <weft/gpu/nccl.hpp>
#endif

using namespace weft;

namespace {

struct mlp {
  linear<12, 16> hidden;
  linear<16, 10> output;
  auto operator()(expression auto x) const { return output(relu(hidden(x))); }
};
struct block {
  layer_normalization<16> first, second;
  causal_self_attention<16> attention = causal_self_attention<16>::create(16, 2);
  feed_forward<16, 64> mlp;
  auto operator()(expression auto x) const {
    auto y = shared(x + attention(first(x)));
    return y + mlp(second(y));
  }
};
struct table {
  embedding_table<> words = embedding_table<>::create(20, 16);
  repeat<block> blocks{std::vector<block>(2)};
  dropout_layer drop;
  auto operator()(expression auto index) const { return blocks(drop(words(index))); }
};

void train() {
  mlp model;
  initialize(model, 1);
  adamw optimizer{.lr = 1e-3};
  const auto x = randn<float>(extents<dyn, 12>{4, 12});
  const auto labels = full<std::int64_t>(extents<dyn>{4}, std::int64_t{1});
  tape steps;
  auto loss = steps.eval(cross_entropy(model(x), labels));
  steps.backward(loss);
  clip_grad_norm(model, 1.0);
  optimizer.step(model);
  self_communicator alone;
  auto run = bind<policy<strategy::single>>(model, optimizer, alone);
  tape again(run);
  again.backward(again.eval(cross_entropy(model(x), labels)));
  run.step({.clip = 1.0});
  std::cout << model << eval(argmax<-1>(model(x))) << clone(model).hidden.weight << loss;
}

void language_model() {
  table model;
  sgd optimizer{.lr = 1e-3, .momentum = 0.9, .nesterov = true};
  const auto index = full<std::int32_t>(extents<dyn, dyn>{2, 3}, 4);
  tape steps;
  auto y = steps.eval(model(index));
  auto loss = steps.eval(linear_cross_entropy(y, model.words.weight, index));
  steps.backward(loss);
  optimizer.step(model);
}

void element_types() {
  const auto x = rand<double>(extents<dyn, 5>{3, 5});
  const auto half = cast<bfloat16>(x);
  const auto small = cast<float16>(slice<0>(x, 1, 3));
  std::cout << eval(softmax<-1>(x)) << eval(concat<0>(cast<float>(half), cast<float>(small)))
            << eval(sum(where(x > 0.5, pow(x, 2.0), erf(x)), dims<0>))
            << eval(cast<std::int64_t>(floor(x * 10.0))) << eval(half * 2 + 0.5) << x(0, -1);
  auto p = variable<double, extents<5>>(eval(mean(x, dims<0>)));
  gradcheck([&] { return sum(tanh(p) * log1p(exp(p))); }, p);
}

void pipeline_schedules() {
  static_assert(pipeline::proved<[] { return pipeline::zb_v(2, 4); }>);
  const auto s = pipeline::schedule_from_csv(pipeline::to_csv(pipeline::schedule_named("1f1b", 2, 4)));
  std::cout << pipeline::timeline_svg(pipeline::simulate(s).records) << pipeline::live(s)[0].activations;
}

void plans() {
  planner::cluster c{.ranks = 2, .device = planner::measured_rates(default_device())};
  c.within = {.latency = 1e-6, .bytes = 1e9};
  const auto job = [](planner::traced_rank& rank, const planner::candidate& way) {
    auto model = create<mlp>(rank.where().deferred());
    sgd optimizer;
    auto run = bind<policy<strategy::mesh<dp>>>(model, optimizer, rank.ranks(), way.sizes);
    const auto x = zeros<float>(extents<dyn, 12>{way.samples, 12}, rank.where());
    rank.step([&] { run.step(way.micro_batches, [&](index_t) { return mean(square(model(x))); }); });
  };
  std::cout << to_string(planner::plan(c, planner::candidates(2, 8, {.dp = 2}), job));
}

void files() {
  auto x = from(extents<dyn, 3>{2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
  io::save("x.npy", x, {.as = dtype::f16});
  io::load("x.npy", x, {.convert = true});
  std::cout << eval(sum(io::load<double, extents<dyn, dyn>>("x.npy", {.convert = true}))).item() << '\n';
  io::save("x.npz", {{"x", x.state()}});
  io::load("x.npz", {{"x", x.state()}}, {.prefix = ""});
  const lstm<3, 4> layer;
  save_onnx("x.onnx", layer(unsqueeze<0>(x)), {.inputs = {{"x", x}}, .tensors = state_dict(layer)});
}

}  // namespace

int main() {
  train();
  language_model();
  element_types();
  pipeline_schedules();
  plans();
  files();
}
