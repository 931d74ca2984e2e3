// SPDX-License-Identifier: MIT
// Matrix products, norms, losses, look-ups and attention, with their derivatives, agree with PyTorch at odd
// sizes.
#include "cases.hpp"

using namespace weft;
using namespace weft::test;

namespace {

const io::stored_tensors& cases() {
  static const io::stored_tensors all = file("layers");
  return all;
}

template <class A, class B, class F>
void of_two(const char* name, F f) {
  for_each_case(cases(), name, [&](const stored_case& c) {
    auto a = c.variable<float, A>("a");
    auto b = c.variable<float, B>("b");
    c.agrees([&] { return f(a, b); }, 1e-5, 4, "a", a, "b", b);
  });
}

}  // namespace

TEST_CASE("products") {
  of_two<order2, order2>("matmul", [](const auto& a, const auto& b) { return matmul(a, b); });
  of_two<order2, order2>("matmul_transposed",
                         [](const auto& a, const auto& b) { return matmul(a, transpose(b)); });
  of_two<order3, order3>("matmul_batched", [](const auto& a, const auto& b) { return matmul(a, b); });
  of_two<order3, order2>("matmul_shared", [](const auto& a, const auto& b) { return matmul(a, b); });
  for_each_case(cases(), "linear", [](const stored_case& c) {
    auto x = c.variable<float, order3>("x");
    linear<> layer{c.variable<float, order2>("w"), c.variable<float, order1>("b")};
    c.agrees([&] { return layer(x); }, 1e-5, 4, "x", x, "w", layer.weight, "b", layer.bias);
  });
}

TEST_CASE("norms") {
  for_each_case(cases(), "layer_norm", [](const stored_case& c) {
    auto x = c.variable<float, order2>("x");
    layer_normalization<> norm{c.variable<float, order1>("w"), c.variable<float, order1>("b")};
    c.agrees([&] { return norm(x); }, 1e-5, 4, "x", x, "w", norm.weight, "b", norm.bias);
  });
  for_each_case(cases(), "rms_norm", [](const stored_case& c) {
    auto x = c.variable<float, order2>("x");
    rms_normalization<dyn, default_epsilon> norm{c.variable<float, order1>("w")};
    c.agrees([&] { return norm(x); }, 1e-5, 4, "x", x, "w", norm.weight);
  });
}

TEST_CASE("group norm") {
  const io::stored_tensors all = file("groups");
  const auto of_groups = [&]<index_t Groups, class Extents>(const char* name) {
    for_each_case(all, name, [](const stored_case& c) {
      auto x = c.variable<float, Extents>("x");
      group_normalization<Groups> norm{c.variable<float, order1>("w"), c.variable<float, order1>("b")};
      c.agrees([&] { return norm(x); }, 1e-5, 4, "x", x, "w", norm.weight, "b", norm.bias);
    });
  };
  of_groups.operator()<2, order3>("group_norm_3_2");
  of_groups.operator()<2, extents<dyn, 6, dyn>>("group_norm_3_2");
  of_groups.operator()<3, order4>("group_norm_4_3");
  of_groups.operator()<1, order4>("group_norm_4_1");
  of_groups.operator()<6, order2>("group_norm_2_6");
  of_groups.operator()<4, extents<dyn, dyn, dyn, dyn, dyn>>("group_norm_5_4");
  of_groups.operator()<4, extents<2, 12, 5, 1, 3>>("group_norm_5_4");
}

TEST_CASE("cross-entropy") {
  const auto of_labels = [](const char* name, auto f) {
    for_each_case(cases(), name, [&](const stored_case& c) {
      auto x = c.variable<float, order2>("x");
      const auto t = c.stored<std::int64_t, order1>("t");
      c.agrees([&] { return f(x, t); }, 1e-5, 1, "x", x);
    });
  };
  of_labels("cross_entropy", [](const auto& x, const auto& t) { return cross_entropy(x, t); });
  of_labels("cross_entropy_each",
            [](const auto& x, const auto& t) { return cross_entropy<reduction_kind::none>(x, t); });
  of_labels("cross_entropy_smooth", [](const auto& x, const auto& t) {
    return cross_entropy<reduction_kind::sum, ignored_label, per_million<100'000>>(x, t);
  });
}

TEST_CASE("losses of two tensors") {
  const auto of_targets = [](const char* name, auto f) {
    for_each_case(cases(), name, [&](const stored_case& c) {
      auto x = c.variable<float, order2>("x"), t = c.variable<float, order2>("t");
      c.agrees([&] { return f(x, t); }, 1e-5, 1, "x", x, "t", t);
    });
  };
  of_targets("mse_mean", [](const auto& x, const auto& t) { return mse_loss(x, t); });
  of_targets("mse_sum", [](const auto& x, const auto& t) { return mse_loss<reduction_kind::sum>(x, t); });
  of_targets("mse_none", [](const auto& x, const auto& t) { return mse_loss<reduction_kind::none>(x, t); });
  of_targets("bce_mean", [](const auto& x, const auto& t) { return bce_with_logits(x, t); });
  of_targets("bce_sum",
             [](const auto& x, const auto& t) { return bce_with_logits<reduction_kind::sum>(x, t); });
  of_targets("bce_none",
             [](const auto& x, const auto& t) { return bce_with_logits<reduction_kind::none>(x, t); });
}

namespace {
template <class Loss>
void agrees_in_all_reductions(const std::string& name, Loss loss) {
  static const io::stored_tensors all = file("losses");
  const auto of_targets = [&]<reduction_kind How>(const std::string& reduction) {
    for_each_case(all, (name + reduction).c_str(), [&](const stored_case& c) {
      auto x = c.variable<float, order2>("x"), t = c.variable<float, order2>("t");
      c.agrees([&] { return loss.template operator()<How>(x, t); }, 1e-5, 1, "x", x, "t", t);
    });
  };
  of_targets.template operator()<reduction_kind::mean>("_mean");
  of_targets.template operator()<reduction_kind::sum>("_sum");
  of_targets.template operator()<reduction_kind::none>("_none");
}
}  // namespace

TEST_CASE("more losses of two tensors") {
  agrees_in_all_reductions(
      "l1", []<reduction_kind How>(const auto& x, const auto& t) { return l1_loss<How>(x, t); });
  agrees_in_all_reductions(
      "huber", []<reduction_kind How>(const auto& x, const auto& t) { return huber_loss<How>(x, t, 0.5); });
  agrees_in_all_reductions("smooth_l1", []<reduction_kind How>(const auto& x, const auto& t) {
    return smooth_l1_loss<How>(x, t, 0.5);
  });
  agrees_in_all_reductions("kl_div", []<reduction_kind How>(const auto& x, const auto& t) {
    return kl_div<How>(log_softmax(x), t);
  });
  agrees_in_all_reductions(
      "soft", []<reduction_kind How>(const auto& x, const auto& t) { return cross_entropy<How>(x, t); });
  agrees_in_all_reductions("soft_smooth", []<reduction_kind How>(const auto& x, const auto& t) {
    return cross_entropy<How, ignored_label, per_million<100'000>>(x, t);
  });
  for_each_case(file("losses"), "kl_div_of_zeros", [](const stored_case& c) {
    const auto x = c.stored<float, order2>("x"), t = c.stored<float, order2>("t");
    c.agrees([&] { return kl_div<reduction_kind::none>(x, t); }, 1e-5, 1);
  });
  CHECK_THROWS_WITH_AS(huber_loss(ones<float>(extents<3>{}), ones<float>(extents<3>{}), 0),
                       "weft: huber_loss: delta is 0, not positive", value_error);
  CHECK_THROWS_WITH_AS(smooth_l1_loss(ones<float>(extents<3>{}), ones<float>(extents<3>{}), -1),
                       "weft: smooth_l1_loss: beta is -1, not 0 or more", value_error);
}

TEST_CASE("cross_entropy with weights of classes") {
  const auto in = [&]<reduction_kind How>(const std::string& reduction) {
    for_each_case(file("class_weights"), "weighted_" + reduction, [](const stored_case& c) {
      auto x = c.variable<float, order2>("x");
      const auto t = c.stored<std::int64_t, order1>("t");
      const auto w = c.stored<float, order1>("w");
      c.agrees([&] { return cross_entropy<How>(x, t, w); }, 1e-5, 1, "x", x);
    });
  };
  in.template operator()<reduction_kind::mean>("mean");
  in.template operator()<reduction_kind::sum>("sum");
  in.template operator()<reduction_kind::none>("none");
}

TEST_CASE("losses of logarithms of probabilities, of triplets, and of angles") {
  const auto in = [&]<reduction_kind How>(const std::string& reduction) {
    for_each_case(file("losses"), "nll_" + reduction, [](const stored_case& c) {
      auto x = c.variable<float, order2>("x");
      const auto t = c.stored<std::int64_t, order1>("t");
      c.agrees([&] { return nll_loss<How>(x, t); }, 1e-5, 1, "x", x);
      const auto small = eval(cast<std::int32_t>(t));
      auto again = c.variable<float, order2>("x");
      c.agrees([&] { return nll_loss<How>(again, small); }, 1e-5, 1, "x", again);
    });
    for_each_case(file("losses"), "triplet_" + reduction, [](const stored_case& c) {
      auto a = c.variable<float, order2>("a"), p = c.variable<float, order2>("p"),
           n = c.variable<float, order2>("n");
      c.agrees([&] { return triplet_margin_loss<How>(a, p, n, 0.7); }, 1e-5, 1, "a", a, "p", p, "n", n);
    });
    for (const auto& [name, margin] : {std::pair{"cosine_", 0.0}, std::pair{"cosine_margin_", 0.25}})
      for_each_case(file("losses"), name + reduction, [margin = margin](const stored_case& c) {
        auto a = c.variable<float, order2>("a"), b = c.variable<float, order2>("b");
        const auto t = c.stored<std::int64_t, order1>("t");
        c.agrees([&] { return cosine_embedding_loss<How>(a, b, t, margin); }, 1e-5, 1, "a", a, "b", b);
        auto again = c.variable<float, order2>("a");
        const auto numbers = eval(cast<float>(t));
        c.agrees([&] { return cosine_embedding_loss<How>(again, b, numbers, margin); }, 1e-5, 1, "a", again);
      });
  };
  in.template operator()<reduction_kind::mean>("mean");
  in.template operator()<reduction_kind::sum>("sum");
  in.template operator()<reduction_kind::none>("none");
  const auto x = ones<float>(extents<2, 3>{});
  const auto labels = from(extents<2>{}, std::vector<std::int64_t>{2, 3});
  CHECK_THROWS_AS(eval(nll_loss(x, labels)), value_error);
  const auto of_bytes = from(extents<2>{}, std::vector<std::uint8_t>{2, 0});
  CHECK(eval(nll_loss<reduction_kind::sum>(cast<bfloat16>(x * 3), of_bytes)).item() == bfloat16(-6));
  const auto none = zeros<double>(extents<dyn, 3>{0});
  CHECK(eval(nll_loss<reduction_kind::sum>(none, zeros<std::int32_t>(extents<dyn>{0}))).item() == 0);
  CHECK(eval(nll_loss<reduction_kind::mean, 3>(x, labels)).item() == -1);
  CHECK_THROWS_WITH_AS(triplet_margin_loss(x, x, x, 0),
                       "weft: triplet_margin_loss: margin is 0, not positive", value_error);
}

TEST_CASE("losses with weights of classes, of probabilities, and with margins") {
  const auto in = [&]<reduction_kind How>(const std::string& reduction) {
    for_each_case(file("losses"), "bce_weighted_" + reduction, [](const stored_case& c) {
      auto x = c.variable<float, order2>("x"), t = c.variable<float, order2>("t");
      const auto w = c.stored<float, order1>("w");
      c.agrees([&] { return bce_with_logits<How>(x, t, w); }, 1e-5, 1, "x", x, "t", t);
    });
    const auto agrees = [&](const std::string& name, auto loss) {
      for_each_case(file("losses"), name + reduction, [&](const stored_case& c) {
        auto x = c.variable<float, order2>("x"), t = c.variable<float, order2>("t");
        c.agrees([&] { return loss(x, t); }, 1e-5, 1, "x", x);
      });
    };
    agrees("bce_of_probabilities_", [](auto x, auto t) { return binary_cross_entropy<How>(x, t); });
    agrees("kl_of_logarithms_", [](auto x, auto t) { return kl_div<How, true>(x, t); });
    agrees("hinge_", [](auto x, auto t) { return hinge_embedding_loss<How>(x, t, 0.75); });
    for_each_case(file("losses"), "ranking_" + reduction, [](const stored_case& c) {
      auto a = c.variable<float, order2>("a"), b = c.variable<float, order2>("b");
      const auto t = c.stored<float, order2>("t");
      c.agrees([&] { return margin_ranking_loss<How>(a, b, t, 0.25); }, 1e-5, 1, "a", a, "b", b);
    });
    for_each_case(file("losses"), "nll_weighted_" + reduction, [](const stored_case& c) {
      auto x = c.variable<float, order2>("x");
      const auto t = c.stored<std::int64_t, order1>("t");
      const auto w = c.stored<float, order1>("w");
      c.agrees([&] { return nll_loss<How>(x, t, w); }, 1e-5, 1, "x", x);
    });
  };
  in.template operator()<reduction_kind::mean>("mean");
  in.template operator()<reduction_kind::sum>("sum");
  in.template operator()<reduction_kind::none>("none");
}

TEST_CASE("look-ups") {
  for_each_case(cases(), "embedding", [](const stored_case& c) {
    embedding_table<> table{c.variable<float, order2>("w")};
    const auto i = c.stored<std::int64_t, order2>("i");
    c.agrees([&] { return table(i); }, 1e-6, 1, "w", table.weight);
  });
  for_each_case(cases(), "embedding_padded", [](const stored_case& c) {
    embedding_table<dyn, dyn, divided::nowhere, 8> table{c.variable<float, order2>("w")};
    const auto i = c.stored<std::int64_t, order2>("i");
    c.agrees([&] { return table(i); }, 1e-6, 1, "w", table.weight);
    auto w = c.variable<float, extents<9, dyn>>("w");
    const auto small = eval(cast<std::uint8_t>(i));
    c.agrees([&] { return embedding<8>(w, small); }, 1e-6, 1, "w", w);
  });
  for_each_case(cases(), "index_select_1", [](const stored_case& c) {
    auto x = c.variable<float, order2>("x");
    const auto i = c.stored<std::int32_t, order1>("i");
    c.agrees([&] { return index_select<1>(x, i); }, 1e-6, 1, "x", x);
  });
  for_each_case(cases(), "gather_1", [](const stored_case& c) {
    auto x = c.variable<float, order2>("x");
    const auto i = c.stored<std::int64_t, order2>("i");
    c.agrees([&] { return gather<1>(x, i); }, 1e-6, 1, "x", x);
  });
  for_each_case(cases(), "one_hot", [](const stored_case& c) {
    const auto i = c.stored<std::int64_t, order2>("i");
    c.agrees([&] { return one_hot<11>(i); }, 0, 0);
  });
  for_each_case(cases(), "scatter_add_1", [](const stored_case& c) {
    auto x = c.variable<float, extents<3, 6>>("x");
    auto s = c.variable<float, order2>("s");
    const auto i = c.stored<std::int64_t, order2>("i");
    c.agrees([&] { return scatter_add<1>(x, i, s); }, 1e-6, 1, "x", x, "s", s);
  });
}

TEST_CASE("attention") {
  const auto of_qkv = [](const char* name, auto f) {
    for_each_case(cases(), name, [&](const stored_case& c) {
      auto q = c.variable<float, order4>("q"), k = c.variable<float, order4>("k"),
           v = c.variable<float, order4>("v");
      c.agrees([&] { return f(q, k, v); }, 1e-5, 1, "q", q, "k", k, "v", v);
    });
  };
  of_qkv("attention", [](const auto& q, const auto& k, const auto& v) { return attention<false>(q, k, v); });
  of_qkv("attention_causal",
         [](const auto& q, const auto& k, const auto& v) { return attention<causal>(q, k, v); });
}

TEST_CASE("rotary positions") {
  const io::stored_tensors all = file("groups");
  for_each_case(all, "rotary", [](const stored_case& c) {
    auto x = c.variable<float, order4>("x");
    const index_t first = c.stored<std::int64_t, order1>("first").to_vector()[0];
    const bool usual = c.stored<double, order1>("base").to_vector()[0] == 1e4;
    // An f32 angle of 1000 has 14 fractional bits.
    const double tolerance = first < 1000 ? 1e-5 : 2e-4;
    if (!usual) c.agrees([&] { return rotary<500'000>(x, first); }, tolerance, 4, "x", x);
    else c.agrees([&] { return rotary(x, first); }, tolerance, 4, "x", x);
    auto same = c.variable<float, order4>("x");
    if (usual && first == 0) c.agrees([&] { return rotary(same); }, tolerance, 4, "x", same);
    same.zero_grad();
    const auto positions = eval(arange<std::int32_t>(x.extent(1)) + static_cast<int>(first));
    if (usual) c.agrees([&] { return rotary(same, positions); }, tolerance, 4, "x", same);
  });
}

TEST_CASE("attention to keys of other lengths, fewer heads, from later positions") {
  const io::stored_tensors all = file("attention_lengths");
  const auto of_qkv = [&](const char* name, auto f) {
    for_each_case(all, name, [&](const stored_case& c) {
      auto q = c.variable<float, order4>("q"), k = c.variable<float, order4>("k"),
           v = c.variable<float, order4>("v");
      c.agrees([&] { return f(c, q, k, v); }, 1e-5, 1, "q", q, "k", k, "v", v);
    });
  };
  of_qkv("attention",
         [](const auto&, const auto& q, const auto& k, const auto& v) { return attention<false>(q, k, v); });
  of_qkv("attention_causal", [](const stored_case& c, const auto& q, const auto& k, const auto& v) {
    return attention<causal>(q, k, v, c.stored<std::int64_t, order1>("first").to_vector()[0]);
  });
}

namespace {
template <bool Causal>
void with_masks(const std::string& suffix) {
  const io::stored_tensors all = file("attention_lengths");
  const auto of_mask = [&](const std::string& name, auto f) {
    for_each_case(all, (name + suffix).c_str(), [&](const stored_case& c) {
      auto q = c.variable<float, order4>("q"), k = c.variable<float, order4>("k"),
           v = c.variable<float, order4>("v");
      const auto call = [&](auto mask, auto... tracked) {
        c.agrees([&] { return attention<Causal>(q, k, v, mask); }, 1e-5, 1, "q", q, "k", k, "v", v,
                 tracked...);
      };
      f(c, call);
    });
  };
  // Extents of 1 that broadcast are static.
  of_mask("attention_seen", [](const stored_case& c, auto call) {
    const shape s = c.extents_of("mask");
    if (s.order == 4 && s[1] == 1) call(c.stored<bool, extents<dyn, 1, 1, dyn>>("mask"));
    else if (s.order == 4) call(c.stored<bool, order4>("mask"));
    else call(c.stored<bool, order2>("mask"));
  });
  of_mask("attention_added", [](const stored_case& c, auto call) {
    const shape s = c.extents_of("mask");
    const auto with = [&](auto mask) { call(mask, "mask", mask); };
    if (s.order == 4 && s[1] == 1) with(c.variable<float, extents<dyn, 1, 1, dyn>>("mask"));
    else if (s.order == 4) with(c.variable<float, order4>("mask"));
    else with(c.variable<float, order2>("mask"));
  });
}
}  // namespace

TEST_CASE("attention with masks") {
  with_masks<false>("");
  with_masks<causal>("_causal");
}
