// SPDX-License-Identifier: MIT
// Five steps of each optimiser are PyTorch's, for sizes that no vector divides; and clipping.
#include "cases.hpp"

using namespace weft;
using namespace weft::test;

namespace {

const io::stored_tensors& cases() {
  static const io::stored_tensors all = file("optimizers");
  return all;
}
const io::stored_tensors& more_cases() {
  static const io::stored_tensors all = file("more_optimizers");
  return all;
}

struct one_parameter {
  parameter<order1> weight;
};

template <class Optimizer>
void steps_of(const char* name, const Optimizer& fresh, const io::stored_tensors& from = cases()) {
  for_each_case(from, name, [&](const stored_case& c) {
    one_parameter model{c.variable<float, order1>("start")};
    const auto gradients = c.stored<float, order2>("gradients");
    tensor<float, order2> ends(gradients.extents());
    std::vector<float> all;
    Optimizer optimizer = fresh;
    for (index_t step = 0; step < 5; ++step) {
      model.weight.state()->grad = eval(reshape<dyn>(slice<0>(gradients, step, step + 1))).state();
      optimizer.step(model);
      for (float x : model.weight.to_vector()) all.push_back(x);
    }
    ends.copy_from(all);
    c.same(*ends.state(), "y", 1e-5, 0.1);
  });
}

}  // namespace

TEST_CASE("SGD") {
  steps_of("sgd", sgd{.lr = 0.1});
  steps_of("sgd_momentum", sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
  steps_of("sgd_nesterov", sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true});
}
TEST_CASE("Adam and AdamW") {
  steps_of("adam", adam(0.01));
  steps_of("adam_decay", adamw{.lr = 0.01, .weight_decay = 0.1, .decoupled = false});
  steps_of("adamw", adamw{.lr = 0.01});
}

TEST_CASE("RMSprop and Adagrad") {
  steps_of("rmsprop", rmsprop{.lr = 0.02}, more_cases());
  steps_of("rmsprop_momentum", rmsprop{.lr = 0.02, .alpha = 0.9, .weight_decay = 0.1, .momentum = 0.8},
           more_cases());
  steps_of("rmsprop_centered", rmsprop{.lr = 0.02, .alpha = 0.9, .centered = true}, more_cases());
  steps_of("rmsprop_both", rmsprop{.lr = 0.02, .alpha = 0.9, .momentum = 0.8, .centered = true},
           more_cases());
  steps_of("adagrad", adagrad{.lr = 0.1}, more_cases());
  steps_of("adagrad_decay", adagrad{.lr = 0.1, .lr_decay = 0.3, .weight_decay = 0.1, .initial_sum = 0.2},
           more_cases());
}

TEST_CASE("clipping by norm") {
  struct one_matrix {
    parameter<order2> weight;
  };
  for_each_case(cases(), "clip_grad_norm", [](const stored_case& c) {
    one_matrix model{parameter<order2>(zeros<float>(order2{7, 3}))};
    model.weight.state()->grad = c.stored<float, order2>("gradient").state();
    const double norm = clip_grad_norm(model, static_cast<double>(c.stored<float, order0>("limit").item()));
    CHECK(norm == doctest::Approx(c.stored<float, order0>("norm").item()).epsilon(1e-6));
    c.same(*model.weight.grad().state(), "y", 1e-5, 1e-6);
  });
}

TEST_CASE("learning-rate schedules") {
  const auto rates_of = [](const char* name, const schedule& rates,
                           const io::stored_tensors& from = cases()) {
    for_each_case(from, name, [&](const stored_case& c) {
      c.same(*generate<double>(order1{20}, [&](index_t s) { return rates.at(s); }).state(), "y", 1e-12, 0.1);
    });
  };
  using shape = schedule::shape;
  rates_of("schedule_step", {.kind = shape::step, .lr = 0.3, .every = 3, .gamma = 0.5});
  rates_of("schedule_cosine", {.kind = shape::cosine, .lr = 0.3, .steps = 19});
  rates_of("schedule_linear", {.kind = shape::linear, .lr = 0.3, .steps = 15, .final_lr = 0.03},
           more_cases());
  rates_of("schedule_final", {.kind = shape::cosine, .lr = 0.3, .steps = 19, .final_lr = 0.03}, more_cases());
  rates_of("schedule_warmup", {.kind = shape::cosine, .lr = 0.3, .warmup = 5, .steps = 20});
}
