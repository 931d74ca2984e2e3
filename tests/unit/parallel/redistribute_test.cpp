// SPDX-License-Identifier: MIT
// Tensors sharded, gathered and resharded along other dims by explicit calls: every element is where it
// belongs, also for extents that do not divide evenly and ranks without elements.
#include <doctest/doctest.h>

#include <vector>

#include <weft/comm/threads.hpp>
#include <weft/parallel/redistribute.hpp>
#include <weft/tensor/create.hpp>

using namespace weft;

namespace {

/// The index at which `rank`'s part begins; with a remainder, the first ranks have one more.
index_t begin_of(index_t extent, int ranks, int rank) {
  index_t begin = 0;
  for (int r = 0; r < rank; ++r)
    for (index_t i = r; i < extent; i += ranks) ++begin;
  return begin;
}

/// Whether `part` has, in order, the elements of `whole` whose index along `dim` belongs to this rank.
template <class T, class Whole, class Part>
bool is_part(const Whole& whole, const Part& part, int dim, const communicator& ranks) {
  const shape s = whole.extents();
  const index_t first = begin_of(s[dim], ranks.size(), ranks.rank()),
                end = begin_of(s[dim], ranks.size(), ranks.rank() + 1);
  const std::vector<T> all = whole.to_vector();
  std::vector<T> expected;
  for (index_t i = 0; i < s.size(); ++i) {
    index_t inner = 1;
    for (int d = dim + 1; d < s.order; ++d) inner *= s[d];
    const index_t at = i / inner % s[dim];
    if (first <= at && at < end) expected.push_back(all[static_cast<std::size_t>(i)]);
  }
  return local_part(part).to_vector() == expected;
}

template <class T, class Extents>
void check_all(Extents e, communicator& ranks) {
  const auto x = generate<T>(e, [](index_t i) { return i; });
  for (int from = 0; from < Extents::order; ++from) {
    INFO(ranks.size() << " ranks, " << to_string(x.extents()) << " along " << from);
    const auto part = divide(x, from, ranks);
    CHECK(part.extents() == x.extents());
    CHECK(is_part<T>(x, part, from, ranks));
    CHECK(gather(part, ranks).to_vector() == x.to_vector());
    const auto again = as_part(local_part(part), from, ranks);
    CHECK(gather(again, ranks).to_vector() == x.to_vector());
    for (int to = 0; to < Extents::order; ++to) {
      const index_t before = ranks.sent().of(collective::all_to_all);
      const auto other = redistribute(part, to - Extents::order, ranks);
      CHECK(is_part<T>(x, other, to, ranks));
      CHECK(gather(other, ranks).to_vector() == x.to_vector());
      // Only the elements of this rank that others keep.
      const index_t own = local_part(part).size(), sent = ranks.sent().of(collective::all_to_all) - before;
      const shape s = x.extents();
      const index_t kept = from == to   ? own
                           : s[to] == 0 ? 0
                                        : own / s[to] *
                                              (begin_of(s[to], ranks.size(), ranks.rank() + 1) -
                                               begin_of(s[to], ranks.size(), ranks.rank()));
      CHECK(sent == (from == to ? 0 : (own - kept) * static_cast<index_t>(sizeof(T))));
    }
  }
}

}  // namespace

TEST_CASE("divide, gather and redistribute along every dim, on 1 to 4 ranks") {
  for (const int n : {1, 2, 3, 4})
    run_ranks(n, [](communicator& ranks) {
      check_all<float>(extents<2, 5, 3>{}, ranks);
      check_all<std::int32_t>(extents<dyn, 7>{4, 7}, ranks);
      check_all<double>(extents<3>{}, ranks);  // fewer than ranks
      check_all<std::uint8_t>(extents<0, 4>{}, ranks);
    });
}

TEST_CASE("what is divided says so, and what does not fit is refused on all ranks") {
  run_ranks(3, [](communicator& ranks) {
    const auto x = generate<float>(extents<4, 3>{}, [](index_t i) { return i; });
    const auto rows = divide(x, 0, ranks);
    CHECK_THROWS_WITH_AS(rows.to_vector(), doctest::Contains("[4, 3] is divided among ranks along dim 0"),
                         value_error);
    CHECK_THROWS_AS(divide(rows, 1, ranks), value_error);
    CHECK_THROWS_AS(divide(x, 2, ranks), value_error);
    CHECK(gather(x, ranks).to_vector() == x.to_vector());  // whole already
    const auto uneven =
        generate<float>(extents<dyn, 2>{ranks.rank() == 1 ? 3 : 1, 2}, [](index_t i) { return i; });
    CHECK_THROWS_WITH_AS(as_part(uneven, 0, ranks), doctest::Contains("rank 0 has [1, 2]"), shape_error);
    const auto other = generate<float>(extents<1, dyn>{1, ranks.rank() + 1}, [](index_t i) { return i; });
    CHECK_THROWS_AS(as_part(other, 0, ranks), shape_error);
    const auto fewer = ranks.split(ranks.rank() < 2 ? 0 : 1);
    if (ranks.rank() < 2) CHECK_THROWS_AS(gather(divide(x, 1, ranks), *fewer), usage_error);
  });
}
