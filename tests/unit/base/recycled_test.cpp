// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <weft/base/philox.hpp>
#include <weft/base/recycled.hpp>

using namespace weft;

namespace {

/// A number in separate memory, so that a sanitizer detects leaks and double frees; counts its objects.
struct counted {
  static inline int alive = 0, copies_left = 1 << 30;
  std::unique_ptr<int> number;

  counted(int n = 0) : number(new int(n)) { ++alive; }
  counted(const counted& other) : number(new int(*other.number)) {
    if (copies_left-- == 0) throw std::runtime_error("no copy");
    ++alive;
  }
  counted(counted&& other) noexcept : number(std::move(other.number)) { ++alive; }
  counted& operator=(counted other) noexcept {
    number = std::move(other.number);
    return *this;
  }
  ~counted() { --alive; }
  bool operator==(const counted& other) const { return *number == *other.number; }
};

template <class T>
void check_equal(const recycled_vector<T>& ours, const std::vector<T>& theirs) {
  REQUIRE(ours.size() == theirs.size());
  CHECK(ours.empty() == theirs.empty());
  for (std::size_t i = 0; i < theirs.size(); ++i) CHECK(ours[i] == theirs[i]);
}

/// Applies random changes to a recycled_vector and a std::vector, and compares them after each.
template <class T>
void compare_changes(std::uint32_t seed) {
  recycled_vector<T> ours;
  std::vector<T> theirs;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const auto word = philox_word({seed, 0}, i);
    const std::size_t size = theirs.size(), some = word / 16 % 24;
    switch (word % 12) {
      case 0:
        ours.resize(some);
        theirs.resize(some);
        break;
      case 1:
        ours = recycled_vector<T>(some, T(3));
        theirs = std::vector<T>(some, T(3));
        break;
      case 2:
        if (size == 0) break;
        ours.pop_back();
        theirs.pop_back();
        break;
      case 3:
        ours.erase_from(ours.begin() + some % (size + 1));
        theirs.erase(theirs.begin() + static_cast<std::ptrdiff_t>(some % (size + 1)), theirs.end());
        break;
      case 4: {
        const recycled_vector<T> before = ours;
        ours.append(before.begin() + some % (size + 1), before.end());
        const std::vector<T> also = theirs;
        const auto first = also.begin() + static_cast<std::ptrdiff_t>(some % (size + 1));
        theirs.insert(theirs.end(), first, also.end());
        if (theirs.size() > 200) {
          ours.clear();
          theirs.clear();
        }
        break;
      }
      case 5: {
        recycled_vector<T> other{T(1), T(2), T(5)};
        std::vector<T> also{T(1), T(2), T(5)};
        CHECK((other == ours) == (also == theirs));
        ours.swap(other);
        theirs.swap(also);
        check_equal(other, also);
        ours = other;
        theirs = also;
        CHECK(ours == other);
        break;
      }
      case 6:
        ours.reserve(some);
        break;
      case 7: {
        recycled_vector<T> moved = std::move(ours);
        ours.assign(moved.begin(), moved.end());
        break;
      }
      case 8:
        if (size == 0) break;
        ours.push_back(ours[some % size]);
        theirs.push_back(T(theirs[some % size]));
        CHECK(ours.back() == theirs.back());
        CHECK(ours.front() == theirs.front());
        break;
      default:
        ours.push_back(T(static_cast<int>(some)));
        theirs.push_back(T(static_cast<int>(some)));
    }
    check_equal(ours, theirs);
  }
}

}  // namespace

TEST_CASE("recycled_vector: two thousand random changes leave it as they leave a std::vector") {
  compare_changes<int>(1);
  compare_changes<counted>(2);
  compare_changes<std::string::size_type>(3);
  CHECK(counted::alive == 0);
}

TEST_CASE("recycled_vector: a copy that throws leaves nothing behind") {
  {
    recycled_vector<counted> all;
    for (int i = 0; i < 9; ++i) all.push_back(i);
    counted::copies_left = 5;
    CHECK_THROWS_AS(recycled_vector<counted>{all}, std::runtime_error);
    counted::copies_left = 0;
    CHECK_THROWS_AS(all.push_back(all[0]), std::runtime_error);
    counted::copies_left = 1 << 30;
    CHECK(all.size() == 9);
    CHECK(counted::alive == 9);
  }
  CHECK(counted::alive == 0);
}

TEST_CASE("make_recycled: one object, aligned, destroyed with its last owner and not before") {
  struct wide {
    alignas(16) char bytes[40]{};
    counted n;
    explicit wide(int value) : n(value) {}
  };
  std::weak_ptr<wide> seen;
  {
    std::shared_ptr<wide> one = make_recycled<wide>(7);
    CHECK(reinterpret_cast<std::uintptr_t>(one.get()) % 16 == 0);
    const std::shared_ptr<const wide> two = one;
    seen = one;
    one.reset();
    CHECK(*two->n.number == 7);
    CHECK(counted::alive == 1);
  }
  CHECK(seen.expired());
  CHECK(counted::alive == 0);

  counted::copies_left = 0;
  const counted original(1);
  CHECK_THROWS_AS(make_recycled<counted>(original), std::runtime_error);  // and destroys nothing
  counted::copies_left = 1 << 30;
  CHECK(counted::alive == 1);
}

TEST_CASE("make_recycled: the next object of a size takes the memory of the last one") {
  if (!detail::recycled_blocks::recycles) return;
  const void* const first = make_recycled<std::uint64_t>(std::uint64_t{1}).get();
  CHECK(make_recycled<std::uint64_t>(std::uint64_t{2}).get() == first);
}
