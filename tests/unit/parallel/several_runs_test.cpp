// SPDX-License-Identifier: MIT
// Several models and runs in one program, under every data-parallel strategy: the values of plain models on
// one rank, or an error that says what to write.
#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <string>

#include <weft/comm/threads.hpp>
#include <weft/nn/repeat.hpp>
#include <weft/parallel/pipeline.hpp>
#include <weft/weft.hpp>

#include "../../compare.hpp"
#include "../../elements.hpp"
#include "../../throws_with.hpp"

using namespace weft;
using weft::test::elements_of;
using weft::test::throws_with;

namespace {

constexpr sharding stages[] = {sharding::none, sharding::optimizer, sharding::gradients,
                               sharding::parameters};

/// Two heads over features; losses read one of them, or both.
struct critic {
  linear<3, 7> in;
  linear<7, 1> real, other;
  auto features(expression auto x) const { return tanh(in(x)); }
  auto operator()(expression auto x) const { return real(features(x)); }
  auto second(expression auto x) const { return other(features(x)); }
};
struct maker {
  linear<2, 3> out;
  auto operator()(expression auto x) const { return out(x); }
};

device one_thread() { return device(std::make_shared<cpu::cpu_backend>(1)); }

/// A model with its initial values and an optimizer; copies agree on all ranks.
template <class M>
struct trained {
  device where;
  M model;
  sgd optimizer{.lr = 0.1, .momentum = 0.5};
  explicit trained(std::uint64_t seed, const device& on = one_thread()) : where(on) {
    to(model, where);
    initialize(model, seed);
  }
};

auto batch(int step, int rank, const device& where) {
  return randn<float>(extents<4, 3>{}, {.seed = static_cast<std::uint64_t>(10 * step + rank)}, where);
}
auto noise(int step, int rank, const device& where) {
  return randn<float>(extents<4, 2>{}, {.seed = static_cast<std::uint64_t>(1000 + 10 * step + rank)}, where);
}

/// Rank 0's parameters at the end of train(ranks, divide), on this many ranks.
template <class F>
std::vector<float> parameters_after(int n, sharding divide, F train) {
  std::vector<float> found;
  run_ranks(n, [&](communicator& ranks) {
    const std::vector<float> all = elements_of(train(ranks, parallel_options{.divide = divide}));
    if (ranks.rank() == 0) found = all;
  });
  return found;
}

/// Rank 0 calls f, then g; the other ranks call g, then f.
template <class F, class G>
void in_other_orders(const communicator& ranks, F f, G g) {
  if (ranks.rank() == 0) f(), g();
  else g(), f();
}

constexpr auto near = test::tolerance{.absolute = 1e-6, .relative = 1e-5};

}  // namespace

TEST_CASE("gradients that tapes of other contexts leave in a bound model are those of its step") {
  // The plain loop on one rank, over the batches of two ranks: losses are means over both.
  const auto plain = [](bool own_first, bool other_head) {
    trained<critic> d(1, default_device());
    trained<maker> g(2, d.where);
    for (int s = 0; s < 3; ++s) {
      for (const bool own : {own_first, !own_first})
        for (int r = 0; r < 2; ++r) {
          tape steps;
          const auto fake = g.model(noise(s, r, d.where));
          if (own) steps.backward(steps.eval(mean(square(d.model(batch(s, r, d.where)) - 1.f)) * 0.5f));
          else if (other_head) steps.backward(steps.eval(mean(square(d.model.second(fake))) * 0.5f));
          else steps.backward(steps.eval(mean(square(d.model(fake))) * 0.5f));
        }
      d.optimizer.step(d.model);
      g.optimizer.step(g.model);
    }
    return elements_of(state_dict(d.model));
  };
  const auto bound = [](bool own_first, bool other_head) {
    return [=](communicator& ranks, const parallel_options& o) {
      trained<critic> d(1);
      trained<maker> g(2, d.where);
      auto rd = bind<>(d.model, d.optimizer, ranks, o);
      auto rg = bind<>(g.model, g.optimizer, ranks, parallel_options{});
      const int r = ranks.rank();
      for (int s = 0; s < 3; ++s) {
        for (const bool own : {own_first, !own_first}) {
          if (own) {
            tape steps(rd);
            steps.backward(steps.eval(mean(square(d.model(batch(s, r, d.where)) - 1.f))));
          } else {
            tape steps(rg);
            const auto fake = g.model(noise(s, r, d.where));
            if (other_head) steps.backward(steps.eval(mean(square(d.model.second(fake)))));
            else steps.backward(steps.eval(mean(square(d.model(fake)))));
          }
        }
        rd.step();
        rg.step();
      }
      return rd.full();
    };
  };
  for (const bool own_first : {true, false})
    for (const bool other_head : {true, false})
      for (const sharding stage : {sharding::none, sharding::optimizer, sharding::gradients}) {
        CAPTURE(own_first);
        CAPTURE(other_head);
        CAPTURE(static_cast<int>(stage));
        CHECK(test::matches(parameters_after(2, stage, bound(own_first, other_head)),
                            plain(own_first, other_head), near));
      }
}

TEST_CASE("a backward pass in a gradient hook of another pass of the same run") {
  const auto train = [](communicator& ranks, const parallel_options& o) {
    trained<critic> d(1);
    auto run = bind<>(d.model, d.optimizer, ranks, o);
    for (int s = 0; s < 3; ++s) {
      tape steps(run);
      auto h = steps.eval(d.model.features(batch(s, 0, d.where)));
      h.on_gradient([&](auto) {
        tape inner(run);
        inner.backward(inner.eval(mean(square(d.model.second(batch(s, 5, d.where))))));
      });
      steps.backward(steps.eval(mean(square(d.model.real(h) - 1.f))));
      run.step();
    }
    return run.full();
  };
  for (const sharding stage : stages) {
    CAPTURE(static_cast<int>(stage));
    const auto one = parameters_after(1, stage, train);
    for (const int n : {2, 3}) CHECK(test::matches(parameters_after(n, stage, train), one, near));
  }
}

TEST_CASE("zero_grad between forward and backward, and after join, drops earlier passes alone") {
  const auto train = [](bool zeroes) {
    return [zeroes](communicator& ranks, const parallel_options& o) {
      trained<critic> d(1);
      auto run = bind<>(d.model, d.optimizer, ranks, o);
      for (int s = 0; s < 3; ++s) {
        if (zeroes) {  // drops a pass, and its join
          run.join(true);
          tape steps(run);
          steps.backward(steps.eval(mean(d.model(batch(s, 7, d.where)))));
          run.zero_grad();
        }
        const bool has = ranks.rank() == 0 || s % 2 == 0;
        run.join(has);
        const auto e = mean(square(d.model(batch(s, ranks.rank(), d.where))));
        tape steps(run);
        if (zeroes) run.zero_grad();
        const auto loss = steps.eval(e);
        if (zeroes) run.zero_grad();
        steps.backward(loss);
        run.step();
      }
      return run.full();
    };
  };
  for (const sharding stage : stages)
    for (const int n : {1, 2}) {
      CAPTURE(static_cast<int>(stage));
      CAPTURE(n);
      CHECK(parameters_after(n, stage, train(true)) == parameters_after(n, stage, train(false)));
    }
}

TEST_CASE("zero_grad sends nothing, and a step after it what it would have sent") {
  run_ranks(2, [](communicator& ranks) {
    trained<critic> d(1);
    auto run = bind<>(d.model, d.optimizer, ranks, parallel_options{});
    const auto pass = [&] {
      tape steps(run);
      steps.backward(steps.eval(mean(d.model(batch(0, ranks.rank(), d.where)))));
    };
    const auto sent = [&] { return run.groups().sent().of(collective::all_reduce); };
    pass();
    run.step();
    const index_t of_step = sent();
    {
      const auto quiet = run.no_sync();
      pass();
    }
    run.zero_grad();
    CHECK(sent() == of_step);
    pass();
    run.step();
    CHECK(sent() == 2 * of_step);
  });
}

TEST_CASE("views and copies of parameters whose rows are under way") {
  for (const sharding stage : {sharding::none, sharding::optimizer, sharding::gradients})
    run_ranks(2, [&](communicator& ranks) {
      trained<critic> d(1);
      auto run = bind<>(d.model, d.optimizer, ranks, parallel_options{.divide = stage});
      const auto before_all = flat_view<float>(d.model.in.weight.state());
      const auto step = [&](int s) {
        run.step(1, [&](index_t) { return mean(square(d.model(batch(s, ranks.rank(), d.where)))); });
      };
      std::optional<decltype(d.model.in.weight.to(default_device()))> copy;
      for (int s = 0; s < 3; ++s) {
        step(s);
        const auto after = flat_view<float>(d.model.in.weight.state());
        copy.emplace(d.model.in.weight.to(default_device()));
        const double sum_of_view = eval(sum(before_all), run).item();
        const auto elements = d.model.in.weight.to_vector();
        CHECK(after.to_vector() == elements);
        CHECK(before_all.to_vector() == elements);
        CHECK(copy->to_vector() == elements);
        CHECK(sum_of_view == eval(sum(after), run).item());
      }
    });
}

TEST_CASE("what several runs cannot do is refused") {
  for (const sharding stage : stages)
    run_ranks(2, [&](communicator& ranks) {
      CAPTURE(static_cast<int>(stage));
      const parallel_options o{.divide = stage};
      trained<critic> a(1), b(1, a.where);
      using run_type = decltype(bind<>(a.model, a.optimizer, ranks, o));
      std::unique_ptr<run_type> ra(new run_type(bind<>(a.model, a.optimizer, ranks, o)));
      CHECK(throws_with<usage_error>([&] { bind<>(b.model, a.optimizer, ranks, o); },
                                     {"bind", "an optimizer for each run"}));
      b.model.in = a.model.in;  // shared
      const auto both = [&] { auto rb = bind<>(b.model, b.optimizer, ranks, o); };
      if (stage == sharding::none) {
        auto rb = bind<>(b.model, b.optimizer, ranks, o);
        const auto pass = [&](auto& run, auto& of) {
          tape steps(run);
          steps.backward(steps.eval(mean(square(of.model(batch(0, ranks.rank(), of.where))))));
        };
        pass(*ra, a);
        CHECK(throws_with<usage_error>([&] { pass(rb, b); }, {"in.", "another run"}));
        rb.zero_grad();
        CHECK(throws_with<usage_error>([&] { zero_grad(a.model); }, {"run.zero_grad()"}));
        ra->step();  // uses only its own gradients
        pass(rb, b);
        rb.step();
      } else {
        CHECK(throws_with<value_error>(both, {"bind", "in.weight", "another run"}));
        CHECK(throws_with<weft::error>([&] { to(a.model, default_device()); }, {"of shape [7, 3]"}));
      }
      ra.reset();
      if (stage != sharding::parameters) {
        both();
        to(a.model, default_device());
      }
    });
}

TEST_CASE("no pass adds to gradients that have been reduced; what a refused one leaves is dropped") {
  for (const sharding stage : {sharding::none, sharding::optimizer, sharding::gradients})
    run_ranks(2, [&](communicator& ranks) {
      CAPTURE(static_cast<int>(stage));
      const auto train = [&](bool tries) {
        trained<critic> d(1);
        auto run = bind<>(d.model, d.optimizer, ranks, parallel_options{.divide = stage});
        context other(d.where);
        const auto pass = [&](context& c, int s) {
          tape steps(c);
          steps.backward(steps.eval(mean(square(d.model(batch(s, ranks.rank(), d.where))))));
        };
        pass(run, 0);
        run.gradient_norm();
        if (tries) {
          CHECK(throws_with<value_error>([&] { pass(other, 1); }, {"reduced", "run.zero_grad()"}));
          CHECK_THROWS_AS(pass(run, 1), value_error);
        }
        run.step();
        pass(other, 2);
        pass(run, 3);
        run.step();
        pass(run, 4);
        run.gradient_norm();
        run.zero_grad();
        pass(run, 5);
        run.step();
        return elements_of(run.full());
      };
      CHECK(train(true) == train(false));
    });
}

TEST_CASE("f16: gradients of other tapes have another scale and are refused") {
  run_ranks(2, [](communicator& ranks) {
    trained<critic> d(1);
    auto run = bind<policy<strategy::data_parallel, precision::f16>>(d.model, d.optimizer, ranks);
    const auto pass = [&](context& c) {
      tape steps(c);
      steps.backward(steps.eval(mean(square(d.model(batch(0, ranks.rank(), d.where))))));
    };
    context other(d.where);
    pass(run);
    pass(other);
    CHECK(throws_with<usage_error>([&] { run.step(); }, {"f16", "run.zero_grad()"}));
    run.zero_grad();
    pass(run);
    run.step();
  });
}

TEST_CASE("joins of a step that failed do not outlive it") {
  run_ranks(2, [](communicator& ranks) {
    trained<critic> d(1);
    auto run = bind<>(d.model, d.optimizer, ranks, parallel_options{});
    const auto loss = [&](index_t) { return mean(square(d.model(batch(0, ranks.rank(), d.where)))); };
    run.join(true);
    run.join(true);
    CHECK_THROWS_AS(run.step(1, loss), usage_error);
    {
      tape steps(run);
      steps.backward(steps.eval(loss(0)));
    }
    run.step();
    run.step(1, loss);
  });
}

TEST_CASE("a view made before bind is refused where ranks divide the parameters") {
  run_ranks(2, [](communicator& ranks) {
    trained<critic> d(1);
    const auto view = flat_view<float>(d.model.in.weight.state());
    auto run = bind<>(d.model, d.optimizer, ranks, parallel_options{.divide = sharding::parameters});
    CHECK(throws_with<value_error>([&] { view.to_vector(); }, {"in.weight", "run.full()"}));
  });
}

TEST_CASE("ranks that take the steps of two equal models in other orders are told so") {
  for (const sharding stage : stages) {
    CAPTURE(static_cast<int>(stage));
    CHECK(throws_with<comm_error>(
        [&] {
          run_ranks(2, [&](communicator& ranks) {
            trained<critic> a(1), b(1, a.where);
            auto ra = bind<>(a.model, a.optimizer, ranks, parallel_options{.divide = stage});
            auto rb = bind<>(b.model, b.optimizer, ranks, parallel_options{.divide = stage});
            in_other_orders(
                ranks,
                [&] { ra.step(1, [&](index_t) { return mean(square(a.model(batch(0, 0, a.where)))); }); },
                [&] { rb.step(1, [&](index_t) { return mean(square(b.model(batch(0, 0, b.where)))); }); });
          });
        },
        {"rank", "(run 1)"}));
  }
}

namespace {

struct deep {
  linear<3, 6> first;
  repeat<linear<6, 6>> blocks{std::vector<linear<6, 6>>(4)};
  linear<6, 1> last;
  auto operator()(expression auto x) const { return last(blocks(first(x))); }
};

using in_stages = policy<strategy::mesh<pp<>>>;

}  // namespace

TEST_CASE("the loss of a pipeline evaluates nothing that other stages have parts of") {
  for (const int n : {2, 3}) {
    CAPTURE(n);
    CHECK(throws_with<weft::error>(
        [&] {
          run_ranks(n, [&](communicator& ranks) {
            trained<deep> student(1), teacher(2, student.where);
            auto of_teacher =
                bind<>(teacher.model, teacher.optimizer, ranks, {.divide = sharding::parameters});
            auto run = bind<in_stages>(student.model, student.optimizer, ranks);
            run.step(2, [&](index_t j) {
              const auto x = batch(static_cast<int>(j), 0, student.where);
              return mean(square(student.model(x) - eval(teacher.model(x), of_teacher)));
            });
          });
        },
        {"all_gather", "in the loss of a pipeline", "before the step"}));
  }
}

TEST_CASE("pipelines of equal models in other orders are told so; one stage may evaluate in the loss") {
  CHECK(throws_with<comm_error>(
      [&] {
        run_ranks(2, [&](communicator& ranks) {
          trained<deep> a(1), b(1, a.where);
          auto ra = bind<in_stages>(a.model, a.optimizer, ranks);
          auto rb = bind<in_stages>(b.model, b.optimizer, ranks);
          const auto loss_of = [](const auto& of) {
            return
                [&of](index_t j) { return mean(square(of.model(batch(static_cast<int>(j), 0, of.where)))); };
          };
          in_other_orders(ranks, [&] { ra.step(2, loss_of(a)); }, [&] { rb.step(2, loss_of(b)); });
        });
      },
      {"rank", "(run 1)"}));
  run_ranks(1, [&](communicator& ranks) {
    trained<deep> student(1), teacher(2, student.where);
    auto of_teacher = bind<>(teacher.model, teacher.optimizer, ranks, {.divide = sharding::parameters});
    auto run = bind<in_stages>(student.model, student.optimizer, ranks);
    run.step(2, [&](index_t j) {
      const auto x = batch(static_cast<int>(j), 0, student.where);
      return mean(square(student.model(x) - eval(teacher.model(x), of_teacher)));
    });
  });
}

namespace {

/// Ties the weights of the first and the last layer.
struct tied_deep {
  linear_without_bias<3, 3> first;
  repeat<linear<3, 3>> blocks{std::vector<linear<3, 3>>(4)};
  linear_without_bias<3, 3> last;
  auto operator()(expression auto x) const { return last(blocks(first(x))); }
};

}  // namespace

TEST_CASE("zero_grad of a pipeline with tied parameters, prepared or evaluated before its first step") {
  const auto train = [](communicator& ranks, int before) {
    trained<tied_deep> d(1);
    d.model.last.weight = d.model.first.weight;
    auto run = bind<in_stages>(d.model, d.optimizer, ranks);
    const auto loss = [&](index_t j) {
      return mean(square(d.model(batch(1, static_cast<int>(j), d.where))));
    };
    if (before == 1) run.prepare(loss(0), 2);
    if (before == 2) (void)run.eval(d.model(batch(2, 0, d.where)));
    if (before) run.zero_grad();
    for (int s = 0; s < 2; ++s) {
      run.step(2, loss);
      if (before) run.zero_grad();
    }
    return elements_of(run.full());
  };
  for (const int n : {1, 2})
    run_ranks(n, [&](communicator& ranks) {
      const auto plain = train(ranks, 0);
      CHECK(train(ranks, 1) == plain);
      CHECK(train(ranks, 2) == plain);
    });
}

TEST_CASE("zero_grad of a pipeline before its first step") {
  const auto train = [](communicator& ranks, bool zeroes) {
    trained<deep> d(1);
    auto run = bind<in_stages>(d.model, d.optimizer, ranks);
    if (zeroes) {
      context own_context(d.where);
      tape other(own_context);
      other.backward(other.eval(mean(d.model(batch(5, 0, d.where)))));
      run.zero_grad();
    }
    for (int s = 0; s < 2; ++s)
      run.step(2, [&](index_t j) { return mean(square(d.model(batch(s, static_cast<int>(j), d.where)))); });
    return elements_of(run.full());
  };
  for (const int n : {1, 2})
    run_ranks(n, [&](communicator& ranks) { CHECK(train(ranks, true) == train(ranks, false)); });
}
