// SPDX-License-Identifier: MIT
// Five steps of each optimizer, and clipping, agree with PyTorch, for sizes that are no multiple of a vector.
#include <weft/optim/lbfgs.hpp>
#include <weft/optim/muon.hpp>

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
const io::stored_tensors& further_cases() {
  static const io::stored_tensors all = file("optimizers_and_schedules");
  return all;
}

template <class Extents>
struct one_parameter {
  parameter<Extents> weight;
};

/// Takes one step with each of the gradients [steps, ...], and compares after every step.
template <class Extents = order1, class Optimizer>
void steps_of(const char* name, const Optimizer& fresh, const io::stored_tensors& from = cases(),
              double tolerance = 1e-5) {
  using all_steps = std::conditional_t<Extents::order == 1, order2, order3>;
  for_each_case(from, name, [&](const stored_case& c) {
    one_parameter<Extents> model{c.variable<float, Extents>("start")};
    const auto gradients = c.stored<float, all_steps>("gradients");
    tensor<float, all_steps> ends(gradients.extents());
    std::vector<float> all;
    Optimizer optimizer = fresh;
    for (index_t step = 0; step < gradients.extent(0); ++step) {
      model.weight.state()->grad = eval(gradients[step]).state();
      optimizer.step(model);
      for (float x : model.weight.to_vector()) all.push_back(x);
    }
    ends.copy_from(all);
    c.same(*ends.state(), "y", tolerance, 0.1);
  });
}

}  // namespace

TEST_CASE("SGD") {
  steps_of("sgd", sgd{.lr = 0.1});
  steps_of("sgd_momentum", sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
  steps_of("sgd_nesterov", sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true});
}
TEST_CASE("Adam and AdamW") {
  steps_of("adam", adam{.lr = 0.01});
  steps_of("adam_decay", adam{.lr = 0.01, .weight_decay = 0.1});
  steps_of("adamw", adamw{.lr = 0.01});
  steps_of("adam_amsgrad", amsgrad{adam{.lr = 0.01, .weight_decay = 0.1}});
  steps_of("adamw_amsgrad", amsgrad{adamw{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.5}});
}

TEST_CASE("RMSprop and Adagrad") {
  steps_of("rmsprop", rmsprop{.lr = 0.02}, more_cases());
  steps_of("rmsprop_momentum", rmsprop{.lr = 0.02, .alpha = 0.9, .weight_decay = 0.1, .momentum = 0.8},
           more_cases());
  steps_of("rmsprop_centered", rmsprop{.lr = 0.02, .alpha = 0.9, .centered = true}, more_cases());
  steps_of("rmsprop_both", rmsprop{.lr = 0.02, .alpha = 0.9, .momentum = 0.8, .centered = true},
           more_cases());
  steps_of("adagrad", adagrad{.lr = 0.1}, more_cases());
  steps_of("adagrad_decay",
           adagrad{.lr = 0.1, .lr_decay = 0.3, .weight_decay = 0.1, .initial_accumulator_value = 0.2},
           more_cases());
}

TEST_CASE("Muon: matrices that are tall, wide and of one element") {
  steps_of<order2>("muon", muon{.lr = 0.02}, further_cases(), 1e-4);
  steps_of<order2>("muon_plain",
                   muon{.lr = 0.02, .weight_decay = 0, .momentum = 0.8, .nesterov = false, .ns_steps = 3},
                   further_cases(), 1e-4);
  steps_of<order2>("muon_rms", muon{.lr = 0.02, .adjust_lr = muon::adjustment::match_rms_adamw},
                   further_cases(), 1e-4);
}

TEST_CASE("L-BFGS: parameters, losses and the number of evaluations") {
  struct two_parameters {
    parameter<order2, double> weight;
    parameter<order1, double> bias;
  };
  const auto steps_of_data = [](const char* name, const lbfgs& fresh) {
    for_each_case(further_cases(), name, [&](const stored_case& c) {
      const auto x = c.stored<double, order2>("x"), y = c.stored<double, order2>("target");
      two_parameters model{c.variable<double, order2>("start"),
                           parameter<order1, double>(zeros<double>(order1{3}))};
      lbfgs optimizer = fresh;
      std::vector<double> losses, ends;
      std::int64_t calls = 0;
      for (int step = 0; step < 5; ++step) {
        losses.push_back(optimizer.step(model, [&] {
          ++calls;
          tape steps;
          const auto error = tanh(matmul(x, model.weight) + model.bias) - y;
          const auto loss = steps.eval(mean(square(error)) + sum(square(model.weight)) * 0.01);
          steps.backward(loss);
          return loss.item();
        }));
        for (double w : model.weight.to_vector()) ends.push_back(w);
      }
      tensor<double, order3> all_ends(shape{3, {5, 5, 3}});
      all_ends.copy_from(ends);
      tensor<double, order1> all_losses(shape{1, {5}});
      all_losses.copy_from(losses);
      c.same(*all_ends.state(), "y", 1e-6, 0.1);
      c.same(*all_losses.state(), "losses", 1e-9, 0.1);
      c.same(*model.bias.state(), "bias", 1e-6, 0.1);
      CHECK(c.stored<std::int64_t, order1>("calls")(0) == calls);
    });
  };
  steps_of_data("lbfgs", {.lr = 0.3, .max_iter = 6});
  steps_of_data("lbfgs_search", {.max_iter = 8, .line_search = true});
  steps_of_data("lbfgs_short", {.max_iter = 5, .max_eval = 9, .history_size = 2, .line_search = true});
}

TEST_CASE("clipping by norm") {
  for_each_case(cases(), "clip_grad_norm", [](const stored_case& c) {
    one_parameter<order2> model{parameter<order2>(zeros<float>(order2{7, 3}))};
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

TEST_CASE("one-cycle schedules: rates and momenta") {
  const auto rates_of = [](const char* name, const one_cycle& rates) {
    for_each_case(further_cases(), name, [&](const stored_case& c) {
      c.same(*generate<double>(order1{20}, [&](index_t s) { return rates.at(s); }).state(), "y", 1e-12, 1e-9);
      c.same(*generate<double>(order1{20}, [&](index_t s) { return rates.momentum_at(s); }).state(),
             "momenta", 1e-12, 0.1);
    });
  };
  rates_of("one_cycle", {.max_lr = 0.3, .steps = 20});
  rates_of("one_cycle_lines", {.max_lr = 0.3,
                               .steps = 20,
                               .pct_start = 0.4,
                               .linear = true,
                               .div_factor = 10,
                               .final_div_factor = 100});
  rates_of("one_cycle_phases",
           {.max_lr = 0.3, .steps = 20, .three_phase = true, .base_momentum = 0.8, .max_momentum = 0.9});
  rates_of("one_cycle_down", {.max_lr = 0.3, .steps = 20, .pct_start = 0});
}

TEST_CASE("rates that fall on a plateau") {
  const auto rates_of = [](const char* name, plateau rates) {
    for_each_case(further_cases(), name, [&](const stored_case& c) {
      double rate = 0.3;
      std::vector<double> all;
      for (double figure : c.stored<double, order1>("figures").to_vector())
        all.push_back(rate = rates.next(rate, figure));
      tensor<double, order1> measured(shape{1, {static_cast<index_t>(all.size())}});
      measured.copy_from(all);
      c.same(*measured.state(), "y", 1e-12, 1e-9);
    });
  };
  rates_of("plateau", {.patience = 2});
  rates_of("plateau_absolute", {.patience = 1, .threshold = 0.05, .absolute = true, .cooldown = 3});
  rates_of("plateau_maximize",
           {.factor = 0.5, .patience = 3, .threshold = 0.01, .maximize = true, .min_lr = 0.02});
  rates_of("plateau_stays", {.patience = 0, .min_lr = 0.299999999});
}
