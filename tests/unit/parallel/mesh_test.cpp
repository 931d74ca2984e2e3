// SPDX-License-Identifier: MIT
// Meshes: the coordinates and groups of all ranks, for every mesh of up to twelve ranks.
#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <set>

#include <weft/comm/counting.hpp>
#include <weft/comm/threads.hpp>
#include <weft/parallel/mesh_text.hpp>

using namespace weft;

namespace {

constexpr mesh_axis axes[] = {mesh_axis::pp, mesh_axis::dp, mesh_axis::fsdp,
                              mesh_axis::cp, mesh_axis::ep, mesh_axis::tp};

/// Calls f(sizes) for every mesh of `n` ranks.
template <class F>
void for_each_mesh(int n, F f) {
  for (int pp = 1; pp <= n; ++pp)
    for (int dp = 1; pp * dp <= n; ++dp)
      for (int fsdp = 1; pp * dp * fsdp <= n; ++fsdp)
        for (int cp = 1; pp * dp * fsdp * cp <= n; ++cp)
          for (int ep = 1; pp * dp * fsdp * cp * ep <= n; ++ep)
            for (int tp = 1; pp * dp * fsdp * cp * ep * tp <= n; ++tp)
              if (pp * dp * fsdp * cp * ep * tp == n) f(mesh_sizes{pp, dp, fsdp, cp, ep, tp});
}

/// Coordinates by counting: the last axis runs fastest.
std::vector<std::array<int, 6>> counted(const mesh_sizes& m) {
  std::vector<std::array<int, 6>> all;
  for (int pp = 0; pp < m.pp; ++pp)
    for (int dp = 0; dp < m.dp; ++dp)
      for (int fsdp = 0; fsdp < m.fsdp; ++fsdp)
        for (int cp = 0; cp < m.cp; ++cp)
          for (int ep = 0; ep < m.ep; ++ep)
            for (int tp = 0; tp < m.tp; ++tp) all.push_back({pp, dp, fsdp, cp, ep, tp});
  return all;
}

/// The ranks in which only the coordinates from `first` to `last` differ from those of `rank`.
std::vector<std::int64_t> members(const mesh_sizes& m, int rank, int first, int last) {
  const auto all = counted(m);
  std::vector<std::int64_t> in;
  for (std::size_t r = 0; r < all.size(); ++r) {
    bool same = true;
    for (int i = 0; i < 6; ++i)
      if (i < first || i > last)
        same = same && all[r][static_cast<std::size_t>(i)] ==
                           all[static_cast<std::size_t>(rank)][static_cast<std::size_t>(i)];
    if (same) in.push_back(static_cast<std::int64_t>(r));
  }
  return in;
}

/// The world ranks in `group`, as its members report to each other.
std::vector<std::int64_t> told(communicator& group, int rank) {
  std::vector<std::int64_t> own{rank}, all(static_cast<std::size_t>(group.size()));
  group.all_gather(own, all).wait();
  return all;
}

}  // namespace

TEST_CASE("mesh: coordinates count with tp fastest") {
  for (int n = 1; n <= 12; ++n)
    for_each_mesh(n, [&](const mesh_sizes& m) {
      const auto expected = counted(m);
      CHECK(m.ranks() == n);
      for (int r = 0; r < n; ++r)
        for (int i = 0; i < 6; ++i)
          CHECK(m.coordinate(r, axes[i]) ==
                expected[static_cast<std::size_t>(r)][static_cast<std::size_t>(i)]);
    });
}

TEST_CASE("mesh: the groups along every axis, and along several") {
  for (const int n : {1, 2, 3, 4, 6, 8})
    run_ranks(n, [&](communicator& ranks) {
      for_each_mesh(n, [&](const mesh_sizes& m) {
        const rank_mesh mesh(ranks, m);
        for (int i = 0; i < 6; ++i) {
          CHECK(mesh.along(axes[i]).rank() == mesh.coordinate(axes[i]));
          CHECK(told(mesh.along(axes[i]), ranks.rank()) == members(m, ranks.rank(), i, i));
        }
        const auto data = mesh.along(mesh_axis::dp, mesh_axis::cp);
        CHECK(told(*data, ranks.rank()) == members(m, ranks.rank(), 1, 3));
      });
    });
}

TEST_CASE("mesh: what does not fit is refused in one line") {
  self_communicator alone;
  CHECK_THROWS_WITH_AS(rank_mesh(alone, {.pp = 2, .dp = 3}),
                       "weft: mesh: pp 2 x dp 3 needs 6 ranks, but there are 1", usage_error);
  CHECK_THROWS_WITH_AS(rank_mesh(alone, {.tp = 0}), "weft: mesh: tp is 0: expected 1 or more", usage_error);
  CHECK_THROWS_WITH_AS(rank_mesh(alone, {.dp = -1, .tp = -1}), "weft: mesh: dp is -1: expected 1 or more",
                       usage_error);
  constexpr int most = std::numeric_limits<int>::max();
  CHECK_THROWS_AS(rank_mesh(alone, {most, most, most, most, most}), usage_error);
  CHECK_THROWS_AS(rank_mesh(alone, {1 << 16, 1 << 16, 1 << 16, 1 << 16, 1}), usage_error);
  run_ranks(4, [](communicator& ranks) { CHECK_THROWS_AS(rank_mesh(ranks, {.dp = 3}), usage_error); });
}

TEST_CASE("mesh: says which rank is where") {
  CHECK(to_string(mesh_sizes{}) == "1 rank");
  CHECK(to_string(mesh_sizes{.pp = 2, .tp = 3}) == "pp 2 x tp 3");
  run_ranks(4, [](communicator& ranks) {
    CHECK(rank_mesh(ranks, {.pp = 2, .tp = 2}).to_string() ==
          "rank 0: pp 0, tp 0\nrank 1: pp 0, tp 1\nrank 2: pp 1, tp 0\nrank 3: pp 1, tp 1\n");
  });
}

TEST_CASE("mesh: read from text, and every mistake in it is quoted") {
  CHECK(mesh_from_text("pp=2,dp=4") == mesh_sizes{.pp = 2, .dp = 4});
  CHECK(mesh_from_text("tp=3,fsdp=1,cp=2") == mesh_sizes{.cp = 2, .tp = 3});
  for (int n = 1; n <= 12; ++n)
    for_each_mesh(n, [](const mesh_sizes& m) {
      std::string text;
      for (const mesh_axis a : axes)
        text += (text.empty() ? "" : ",") + std::string(name_of(a)) + "=" + std::to_string(m.of(a));
      CHECK(mesh_from_text(text) == m);
    });
  const auto refused = [](const char* text, const std::string& why) {
    CHECK_THROWS_WITH_AS(mesh_from_text(text), ("weft: mesh \"" + std::string(text) + "\": " + why).c_str(),
                         usage_error);
  };
  const std::string form = " must be AXIS=SIZE with an axis of pp, dp, fsdp, cp, ep, tp, as in pp=2,dp=4";
  refused("", "\"\"" + form);
  refused("pp=2,", "\"\"" + form);
  refused("pp", "\"pp\"" + form);
  refused("pp=2,ddp=2", "\"ddp=2\"" + form);
  refused("pp =2", "\"pp =2\"" + form);
  refused("=2", "\"=2\"" + form);
  for (const char* size : {"pp=", "pp=0", "pp=-1", "pp=2x", "pp= 2", "pp=2=2", "pp=99999999999"})
    refused(size, "\"" + std::string(size) + "\" must have a size of 1 or more, or auto");
  refused("dp=2,pp=2,dp=2", "the axis dp is given twice");
  refused("dp=auto,fsdp=auto", "only one axis can be auto");
  refused("pp=65536,dp=65536,cp=auto,tp=auto", "only one axis can be auto");
  CHECK_THROWS_AS(mesh_from_text(std::string(100000, 'p')), usage_error);
}

TEST_CASE("mesh: the axis that is auto has the ranks that are left") {
  CHECK(with_ranks(mesh_from_text("pp=2,dp=auto"), 8) == mesh_sizes{.pp = 2, .dp = 4});
  CHECK(with_ranks(mesh_from_text("fsdp=auto,tp=3"), 3) == mesh_sizes{.tp = 3});
  CHECK(with_ranks(mesh_from_text("pp=auto"), 5) == mesh_sizes{.pp = 5});
  CHECK(with_ranks({.pp = 2, .dp = 2}, 4) == mesh_sizes{.pp = 2, .dp = 2});
  CHECK_THROWS_WITH_AS(with_ranks(mesh_from_text("pp=2,dp=auto,tp=2"), 6),
                       "weft: mesh: pp 2 x tp 2 with dp auto needs a multiple of 4 ranks, but there are 6",
                       usage_error);
  CHECK_THROWS_AS(with_ranks({.pp = 2}, 4), usage_error);
  CHECK_THROWS_AS(with_ranks({.dp = 0, .fsdp = 0}, 8), usage_error);
  for (const mesh_sizes& m :
       {mesh_sizes{.pp = 2, .fsdp = 3}, mesh_sizes{}, mesh_sizes{.tp = 2}, mesh_sizes{.pp = 2, .dp = 0}})
    CHECK(mesh_from_text(to_mesh_text(m)) == m);
}

TEST_CASE("mesh: groups of ranks that are not there are as large as those that are") {
  run_ranks(8, [](communicator& ranks) {
    counting_communicator nowhere(ranks.rank(), ranks.size());
    const auto same = [](const communicator& a, const communicator& b) {
      return a.size() == b.size() && a.rank() == b.rank();
    };
    for_each_mesh(8, [&](const mesh_sizes& m) {
      const rank_mesh mesh(ranks, m), counted(nowhere, m);
      for (const mesh_axis a : axes) CHECK(same(mesh.along(a), counted.along(a)));
    });
    const auto thirds = [](int rank) { return rank % 3; };
    CHECK(same(*ranks.split_by(thirds), *nowhere.split_by(thirds, {})));
  });
}
