// SPDX-License-Identifier: MIT
// Learning rates as functions of the step, counted from 0, or of the progress of training.
//
//   const schedule rate{.kind = schedule::shape::cosine, .lr = 3e-4, .warmup = 100, .steps = 5000};
//   optimizer.lr = rate.at(step);
//
//   plateau patience{.patience = 3};
//   optimizer.lr = patience.next(optimizer.lr, validation_loss);      // after each epoch
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <optional>

#include <weft/optim/fields.hpp>

namespace weft {

namespace detail {
inline bool is_rate(double x) { return x >= 0 && std::isfinite(x); }
}  // namespace detail

/// Linear warm-up lr (s + 1) / warmup, then constant; or a cosine (Loshchilov and Hutter, 2017) or a line
/// from lr to `final_lr` at step `steps`, where it stays; or lr times gamma^(s / every), where s includes the
/// steps of the warm-up.
struct schedule {
  enum class shape { constant, cosine, step, linear };
  shape kind = shape::constant;
  double lr = 1e-3;
  std::int64_t warmup = 0;
  std::int64_t steps = 0;  // cosine and linear: when the rate is final; must be set, to at least warmup
  std::int64_t every = 1;  // step: number of steps between reductions
  double gamma = 0.1;      // step: factor of a reduction
  double final_lr = 0;     // cosine and linear

  /// The learning rate of step `s`, counted from 0. Throws value_error, naming the field, if a field or the
  /// step is out of range.
  double at(std::int64_t s) const {
    require(s >= 0, "a step", static_cast<double>(s), "0 or more");
    require(detail::is_rate(lr), "lr", lr, "finite and 0 or more");
    require(warmup >= 0, "warmup", static_cast<double>(warmup), "0 or more");
    require(steps >= 0, "steps", static_cast<double>(steps), "0 or more");
    require(every > 0, "every", static_cast<double>(every), "1 or more");
    require(gamma >= 0, "gamma", gamma, "0 or more");
    require(detail::is_rate(final_lr), "final_lr", final_lr, "finite and 0 or more");
    const bool ends = kind == shape::cosine || kind == shape::linear;
    require(!ends || steps >= std::max<std::int64_t>(warmup, 1), "steps", static_cast<double>(steps),
            "1 or more and at least warmup, as a cosine or a line needs");
    if (s < warmup) return lr * static_cast<double>(s + 1) / static_cast<double>(warmup);
    if (ends) {
      if (s >= steps) return final_lr;
      const double done = static_cast<double>(s - warmup) / static_cast<double>(steps - warmup);
      const double left = kind == shape::linear ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
      return final_lr + (lr - final_lr) * left;
    }
    if (kind == shape::step) return lr * std::pow(gamma, static_cast<double>(s / every));
    return lr;
  }

 private:
  static void require(bool holds, const char* field, double value, const char* what) {
    if (!holds) detail::refuse_field("schedule", field, value, what);
  }
};

/// The one-cycle policy (Smith and Topin, 2018), as torch.optim.lr_scheduler.OneCycleLR: the rate rises from
/// max_lr / div_factor to `max_lr` in the first `pct_start` of the steps, and falls to max_lr / div_factor /
/// final_div_factor at the last step, where it stays. The momentum falls while the rate rises, and vice
/// versa.
struct one_cycle {
  double max_lr = 1e-3;
  std::int64_t steps = 0;  // steps of the cycle; must be set
  double pct_start = 0.3;
  bool linear = false;       // linear instead of cosine
  bool three_phase = false;  // the fall first returns to max_lr / div_factor, in as many steps as the rise
  double div_factor = 25, final_div_factor = 1e4;
  double base_momentum = 0.85, max_momentum = 0.95;

  /// The learning rate of step `s`, counted from 0. Throws value_error, naming the field, if a field or the
  /// step is out of range.
  double at(std::int64_t s) const {
    const double first = max_lr / div_factor;
    return cycle(s, first, max_lr, first / final_div_factor);
  }
  /// The momentum (Adam's beta1) of step `s`, likewise.
  double momentum_at(std::int64_t s) const { return cycle(s, max_momentum, base_momentum, max_momentum); }

 private:
  /// The value at step `s` on the way from `first` to `turn`, with three phases back to `first`, and then to
  /// `last`.
  double cycle(std::int64_t s, double first, double turn, double last) const {
    require(s >= 0, "a step", static_cast<double>(s), "0 or more");
    require(steps > 0, "steps", static_cast<double>(steps), "1 or more");
    require(detail::is_rate(max_lr), "max_lr", max_lr, "finite and 0 or more");
    require(pct_start >= 0 && pct_start <= 1, "pct_start", pct_start, "a value in [0, 1]");
    require(div_factor > 0, "div_factor", div_factor, "a value above 0");
    require(final_div_factor > 0, "final_div_factor", final_div_factor, "a value above 0");
    require(detail::is_rate(base_momentum), "base_momentum", base_momentum, "finite and 0 or more");
    require(detail::is_rate(max_momentum), "max_momentum", max_momentum, "finite and 0 or more");
    const double end = static_cast<double>(steps) - 1, step = std::min(static_cast<double>(s), end);
    const double turns = pct_start * static_cast<double>(steps) - 1, back = 2 * turns;
    if (step <= turns) return between(first, turn, 0, turns, step);
    if (!three_phase) return between(turn, last, turns, end, step);
    if (step <= back) return between(turn, first, turns, back, step);
    return between(first, last, back, end, step);
  }
  double between(double from, double to, double begin, double end, double step) const {
    const double done = step < end ? (step - begin) / (end - begin) : 1;
    return to + (from - to) * (linear ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done)));
  }
  static void require(bool holds, const char* field, double value, const char* what) {
    if (!holds) detail::refuse_field("one_cycle", field, value, what);
  }
};

/// Multiplies the rate by `factor` when a metric has not improved for more than `patience` calls, as
/// torch.optim.lr_scheduler.ReduceLROnPlateau. The metric must be the same on all ranks.
struct plateau {
  double factor = 0.1;
  std::int64_t patience = 10;
  double threshold = 1e-4;    // the least improvement, relative to the best metric
  bool absolute = false;      // `threshold` is an absolute difference
  bool maximize = false;      // larger metrics are better
  std::int64_t cooldown = 0;  // calls after a reduction that are not counted as bad
  double min_lr = 0;
  double eps = 1e-8;  // smaller reductions are not made

  // State; save and restore it to continue a training run.
  std::optional<double> best{};
  std::int64_t bad_calls = 0, cooling = 0;

  /// The next learning rate, after a validation whose metric was `figure`; NaN is not an improvement. Throws
  /// value_error, naming the field, if a field or `lr` is out of range.
  double next(double lr, double figure) {
    detail::require_fields("plateau", {{"lr", lr},
                                       {"patience", static_cast<double>(patience)},
                                       {"threshold", threshold},
                                       {"cooldown", static_cast<double>(cooldown)},
                                       {"min_lr", min_lr},
                                       {"eps", eps}});
    detail::require_fractions("plateau", {{"factor", factor}});
    if (is_better(figure)) {
      best = figure;
      bad_calls = 0;
    } else ++bad_calls;
    if (cooling > 0) {
      --cooling;
      bad_calls = 0;
    }
    if (bad_calls <= patience) return lr;
    cooling = cooldown;
    bad_calls = 0;
    const double less = std::max(lr * factor, min_lr);
    return lr - less > eps ? less : lr;
  }

 private:
  bool is_better(double figure) const {
    const double sign = maximize ? 1 : -1;
    const double known = best.value_or(-sign * std::numeric_limits<double>::infinity());
    const double limit = absolute ? known + sign * threshold : known * (1 + sign * threshold);
    return maximize ? figure > limit : figure < limit;
  }
};

}  // namespace weft
