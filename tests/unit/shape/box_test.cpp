// SPDX-License-Identifier: MIT
// Boxes against arrays of elements; every element is looked up by its coordinates.
#include <doctest/doctest.h>

#include <chrono>

#include "../../boxes.hpp"

using namespace weft;
using namespace weft::test;

TEST_CASE("runs visit the elements that two boxes share, in order, and as few runs as there are") {
  random_source random(1);
  for (int round = 0; round < 3000; ++round) {
    const shape whole = random_shape(random);
    const box a = random_box(random, whole), b = random_box(random, whole);
    const std::vector<index_t> in_a = elements_of(a, whole), in_b = elements_of(b, whole);
    std::vector<index_t> expected, found;
    int fewest = 0;
    std::size_t last_a = 0, last_b = 0;
    for (std::size_t i = 0; i < in_a.size(); ++i)
      for (std::size_t j = 0; j < in_b.size(); ++j)
        if (in_a[i] == in_b[j]) {
          fewest += expected.empty() || i != last_a + 1 || j != last_b + 1;
          expected.push_back(in_a[i]);
          last_a = i, last_b = j;
        }
    int runs = 0;
    for_each_run(a, b, [&](index_t i, index_t j, index_t count) {
      ++runs;
      for (index_t k = 0; k < count; ++k) {
        found.push_back(in_a[static_cast<std::size_t>(i + k)]);
        CHECK(found.back() == in_b[static_cast<std::size_t>(j + k)]);
      }
    });
    INFO(to_string(a) << " and " << to_string(b) << " of " << to_string(whole));
    CHECK(found == expected);
    CHECK(intersection(a, b).size() == static_cast<index_t>(expected.size()));
    // Runs can be adjacent if a dim of extent 1 hides that both boxes are whole in it.
    CHECK(runs >= fewest);
    if (a == whole_box(whole) && b == a) CHECK(runs == (whole.size() > 0));
  }
}

TEST_CASE("slabs are contiguous, in order, together the tensor, and as large as they may be") {
  random_source random(2);
  for (int round = 0; round < 1000; ++round) {
    const shape whole = random_shape(random);
    const index_t most = 1 + below(random, 40);
    std::vector<index_t> found;
    std::vector<box> slabs;
    for_each_slab(whole, most, [&](const box& slab) {
      CHECK(slab.size() <= most);
      CHECK(slab.size() > 0);
      const std::vector<index_t> in = elements_of(slab, whole);
      CHECK(in.back() - in.front() + 1 == slab.size());
      found.insert(found.end(), in.begin(), in.end());
      slabs.push_back(slab);
    });
    CHECK(found == elements_of(whole_box(whole), whole));
    if (whole.size() > 0 && whole.size() <= most) CHECK(slabs.size() == 1);
    if (most >= 7 && whole.order == 1) CHECK(slabs.size() <= 1);
  }
  int slabs = 0;
  for_each_slab({2, {10, 8}}, 24, [&](const box&) { ++slabs; });
  CHECK(slabs == 4);  // three rows each, one at the end
}

TEST_CASE("a tiling has each element once; what is missing or there twice is found") {
  random_source random(3);
  int good = 0, missing = 0, twice = 0;
  for (int round = 0; round < 4000; ++round) {
    const shape whole = random_shape(random);
    std::vector<box> boxes;
    cut(random, whole_box(whole), static_cast<int>(below(random, 4)), boxes);
    std::shuffle(boxes.begin(), boxes.end(), random);
    for (index_t damage = below(random, 3); damage > 0; --damage) {
      box& b = boxes[static_cast<std::size_t>(below(random, static_cast<index_t>(boxes.size())))];
      if (below(random, 2)) b = random_box(random, whole);
      else boxes.push_back(b);
    }
    std::vector<int> times(static_cast<std::size_t>(whole.size()));
    for (const box& b : boxes)
      for (index_t i : elements_of(b, whole)) ++times[static_cast<std::size_t>(i)];
    const auto fault = find_tiling_fault(boxes, whole);
    const bool tiles = std::all_of(times.begin(), times.end(), [](int n) { return n == 1; });
    REQUIRE(!fault == tiles);
    good += tiles;
    if (!fault) continue;
    CHECK(is_within(fault->where, whole));
    const auto first = std::find_if(times.begin(), times.end(), [](int n) { return n != 1; });
    CHECK(elements_of(fault->where, whole).front() == first - times.begin());
    CHECK(fault->where.size() > 0);
    missing += fault->missing;
    twice += !fault->missing;
    for (index_t i : elements_of(fault->where, whole)) {
      if (fault->missing) CHECK(times[static_cast<std::size_t>(i)] == 0);
      else CHECK(times[static_cast<std::size_t>(i)] > 1);
    }
    if (!fault->missing) {
      CHECK(fault->first != fault->second);
      for (const std::size_t n : {fault->first, fault->second})
        CHECK(intersection(fault->where, boxes[n]) == fault->where);
    }
  }
  CHECK(good > 500);
  CHECK(missing > 300);
  CHECK(twice > 300);
}

TEST_CASE("a pinwheel, which no cut divides, tiles") {
  const std::vector<box> wheel{{{2, {0, 0}}, {2, {1, 2}}},
                               {{2, {0, 2}}, {2, {2, 1}}},
                               {{2, {2, 1}}, {2, {1, 2}}},
                               {{2, {1, 0}}, {2, {2, 1}}},
                               {{2, {1, 1}}, {2, {1, 1}}}};
  CHECK(!find_tiling_fault(wheel, {2, {3, 3}}));
  for (std::size_t i = 0; i < wheel.size(); ++i) {
    std::vector<box> four = wheel;
    four.erase(four.begin() + static_cast<std::ptrdiff_t>(i));
    const auto fault = find_tiling_fault(four, {2, {3, 3}});
    REQUIRE(fault);
    CHECK(fault->missing);
    CHECK(intersection(fault->where, wheel[i]) == fault->where);
  }
}

TEST_CASE("the time to find a fault is not that of the boxes squared") {
  constexpr index_t count = 100'000;
  const auto time = [](const std::vector<box>& boxes, const shape& whole) {
    const auto start = std::chrono::steady_clock::now();
    CHECK(find_tiling_fault(boxes, whole).has_value());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<box> apart, grid, teeth;
  for (index_t i = 0; i < count; ++i) {
    apart.push_back({{1, {2 * i + 1}}, {1, {1}}});
    grid.push_back({{6, {i % 10, i / 10 % 10, i / 100 % 10, i / 1000 % 10, i / 10000, 0}},
                    {6, {1, 1, 1, 1, 1, 2 - i / (count - 1)}}});
    teeth.push_back({{2, {0, i}}, {2, {1 + i % 2, 1}}});
  }
  CHECK(time(apart, {1, {2 * count + 1}}) < 10);
  CHECK(time(grid, {6, {10, 10, 10, 10, 10, 2}}) < 10);
  CHECK(time(teeth, {2, {2, count}}) < 10);
}

TEST_CASE("boxes outside of a tensor, of any numbers") {
  constexpr index_t most = std::numeric_limits<index_t>::max();
  CHECK(is_within({{2, {1, 2}}, {2, {2, 3}}}, {2, {3, 5}}));
  CHECK(is_within({{2, {3, 5}}, {2, {0, 0}}}, {2, {3, 5}}));
  CHECK(is_within({{0, {}}, {0, {}}}, {0, {}}));
  for (const box& b :
       {box{{2, {1, 2}}, {2, {3, 3}}}, box{{2, {1, 3}}, {2, {2, 3}}}, box{{2, {-1, 0}}, {2, {1, 1}}},
        box{{2, {0, 0}}, {2, {-1, 1}}}, box{{2, {most, 0}}, {2, {1, 1}}}, box{{2, {0, 0}}, {2, {most, 1}}},
        box{{2, {most, 0}}, {2, {most, 1}}}, box{{1, {0}}, {1, {1}}}, box{{2, {4, 0}}, {2, {0, 0}}}})
    CHECK(!is_within(b, {2, {3, 5}}));
  CHECK(to_string(box{{2, {4, 0}}, {2, {2, 8}}}) == "[4:6, 0:8]");
}
