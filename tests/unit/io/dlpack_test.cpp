// SPDX-License-Identifier: MIT
// Tensors to and from other libraries: the layout of DLPack's structs, ownership of the elements, arbitrary
// strides, and refused tensors.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include <weft/io/dlpack.hpp>
#include <weft/weft.hpp>

using namespace weft;

// Offsets in DLManagedTensor and DLManagedTensorVersioned of DLPack 1.0, with 8-byte pointers.
static_assert(sizeof(io::dlpack_device) == 8 && sizeof(io::dlpack_dtype) == 4);
static_assert(offsetof(io::dlpack_array, device) == 8 && offsetof(io::dlpack_array, order) == 16 &&
              offsetof(io::dlpack_array, type) == 20 && offsetof(io::dlpack_array, extents) == 24 &&
              offsetof(io::dlpack_array, strides) == 32 && offsetof(io::dlpack_array, byte_offset) == 40 &&
              sizeof(io::dlpack_array) == 48);
static_assert(offsetof(io::dlpack_tensor, context) == 48 && offsetof(io::dlpack_tensor, deleter) == 56 &&
              sizeof(io::dlpack_tensor) == 64);
static_assert(offsetof(io::dlpack_versioned_tensor, context) == 8 &&
              offsetof(io::dlpack_versioned_tensor, deleter) == 16 &&
              offsetof(io::dlpack_versioned_tensor, flags) == 24 &&
              offsetof(io::dlpack_versioned_tensor, array) == 32 &&
              sizeof(io::dlpack_versioned_tensor) == 80);

namespace {

/// An array of another library: its elements in a buffer, and the number of calls of the deleter.
template <class Managed>
struct foreign {
  std::vector<char> buffer;
  std::vector<std::int64_t> extents, strides;
  int deleted = 0;
  Managed managed{};

  foreign(std::vector<std::int64_t> e, std::vector<std::int64_t> s, io::dlpack_dtype type)
      : extents(std::move(e)), strides(std::move(s)) {
    managed.array.order = static_cast<std::int32_t>(extents.size());
    managed.array.type = type;
    managed.array.extents = extents.data();
    managed.array.strides = strides.empty() ? nullptr : strides.data();
    managed.context = this;
    managed.deleter = [](Managed* m) { ++static_cast<foreign*>(m->context)->deleted; };
  }
  foreign(const foreign&) = delete;
};

constexpr io::dlpack_dtype code_of(double) { return {2, 64, 1}; }
constexpr io::dlpack_dtype code_of(float) { return {2, 32, 1}; }
constexpr io::dlpack_dtype code_of(float16) { return {2, 16, 1}; }
constexpr io::dlpack_dtype code_of(bfloat16) { return {4, 16, 1}; }
constexpr io::dlpack_dtype code_of(std::int64_t) { return {0, 64, 1}; }
constexpr io::dlpack_dtype code_of(std::int32_t) { return {0, 32, 1}; }
constexpr io::dlpack_dtype code_of(std::uint8_t) { return {1, 8, 1}; }
constexpr io::dlpack_dtype code_of(bool) { return {6, 8, 1}; }

}  // namespace

TEST_CASE_TEMPLATE("arrays in any order of their elements", T, double, float, float16, bfloat16, std::int64_t,
                   std::int32_t, std::uint8_t, bool) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> extents, strides;
    const std::int64_t order = below(max_order + 1);
    std::int64_t lowest = 0, highest = 0, count = 1;
    for (std::int64_t d = 0; d < order; ++d) {
      extents.push_back(below(round % 5 ? 4 : 3) + (round % 5 ? 1 : 0));
      strides.push_back(below(9) - 4);  // overlapping and backwards, too
      count *= extents.back();
      const std::int64_t reach = (extents.back() - 1) * strides.back();
      (reach < 0 ? lowest : highest) += extents.back() > 0 ? reach : 0;
    }
    const bool compact = round % 3 == 0;
    if (compact) lowest = 0, highest = count;
    foreign<io::dlpack_tensor> from(extents, compact ? std::vector<std::int64_t>() : strides, code_of(T{}));
    from.buffer.resize(static_cast<std::size_t>(highest - lowest + 1) * sizeof(T) + 3);
    for (char& c : from.buffer) c = static_cast<char>(std::is_same_v<T, bool> ? random() % 2 : random());
    from.managed.array.byte_offset = static_cast<std::uint64_t>(-lowest) * sizeof(T) + 3;  // not aligned
    from.managed.array.data = from.buffer.data();
    std::vector<char> expected;
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t left = i, at = compact ? i : 0;
      for (std::int64_t d = order; d-- > 0 && !compact; left /= extents[static_cast<std::size_t>(d)])
        at += left % extents[static_cast<std::size_t>(d)] * strides[static_cast<std::size_t>(d)];
      const char* const e =
          from.buffer.data() + from.managed.array.byte_offset + at * std::int64_t{sizeof(T)};
      expected.insert(expected.end(), e, e + sizeof(T));
    }
    const auto check = [&]<class Extents>(Extents) {
      const auto t = io::from_dlpack<T, Extents>(&from.managed);
      CHECK(t.size() == count);
      CHECK((count == 0 || std::memcmp(t.data(), expected.data(), expected.size()) == 0));
      for (std::int64_t d = 0; d < order; ++d)
        CHECK(t.extents()[static_cast<int>(d)] == extents[static_cast<std::size_t>(d)]);
    };
    switch (order) {
      case 0: check(weft::extents<>()); break;
      case 1: check(weft::extents<dyn>{0}); break;
      case 2: check(weft::extents<dyn, dyn>{0, 0}); break;
      case 3: check(weft::extents<dyn, dyn, dyn>{0, 0, 0}); break;
      case 4: check(weft::extents<dyn, dyn, dyn, dyn>{0, 0, 0, 0}); break;
      case 5: check(weft::extents<dyn, dyn, dyn, dyn, dyn>{0, 0, 0, 0, 0}); break;
      default: check(weft::extents<dyn, dyn, dyn, dyn, dyn, dyn>{0, 0, 0, 0, 0, 0});
    }
    CHECK(from.deleted == 1);
  }
}

TEST_CASE_TEMPLATE("tensors for others: the same memory, until the deleter is called", Managed,
                   io::dlpack_tensor, io::dlpack_versioned_tensor) {
  Managed* given = nullptr;
  std::weak_ptr<tensor_state> alive;
  {
    auto x = from<float>(extents<2, 3>{}, {1, 2, 3, 4, 5, 6});
    const auto before = x + 1.0f;
    given = io::to_dlpack<Managed>(x);
    CHECK(given->array.data == x.data());
    CHECK_THROWS_AS(eval(before), value_error);  // may have been changed
    alive = x.state();
  }
  CHECK(given->array.device.type == 1);
  CHECK(given->array.order == 2);
  CHECK(given->array.extents[0] == 2);
  CHECK(given->array.strides[0] == 3);
  CHECK(given->array.strides[1] == 1);
  CHECK(static_cast<const float*>(given->array.data)[5] == 6);
  REQUIRE(!alive.expired());
  const auto again = io::from_dlpack<float, extents<dyn, 3>>(given);  // calls the deleter
  CHECK(alive.expired());
  CHECK(again.to_vector() == std::vector<float>{1, 2, 3, 4, 5, 6});
  parameter<extents<4>> p(zeros<float>(extents<4>{}));
  Managed* const of_parameter = io::to_dlpack<Managed>(p);
  static_cast<float*>(of_parameter->array.data)[1] = 7;
  of_parameter->deleter(of_parameter);
  CHECK(p.to_vector() == std::vector<float>{0, 7, 0, 0});
}

TEST_CASE("what does not fit is refused, and its deleter is not called") {
  using managed = io::dlpack_tensor;
  float one = 1;
  const auto refused = [&](auto change, const char* why) {
    foreign<managed> from({1}, {1}, code_of(0.0f));
    from.managed.array.data = &one;
    change(from);
    CHECK_THROWS_WITH_AS((io::from_dlpack<float, extents<dyn>>(&from.managed)), doctest::Contains(why),
                         error);
    CHECK(from.deleted == 0);
  };
  refused([](auto& f) { f.managed.array.type.bits = 64; },
          "type code 2 with 64 bits and 1 lanes, but f32 has type code 2 with 32 bits");
  refused([](auto& f) { f.managed.array.type.code = 0; }, "type code 0");
  refused([](auto& f) { f.managed.array.type.lanes = 4; }, "4 lanes");
  refused([](auto& f) { f.managed.array.device.type = 2; }, "on a device of DLPack type 2");
  refused([](auto& f) { f.managed.array.order = max_order + 1; }, "a tensor has at most 6");
  refused([](auto& f) { f.managed.array.order = -1; }, "-1 dims");
  refused([](auto& f) { f.extents[0] = -3; }, "dim 0 has extent -3");
  refused([](auto& f) { f.managed.array.order = 0; }, "cannot have the extents []");
  foreign<io::dlpack_tensor> two({2}, {}, code_of(true));
  two.buffer = {1, 2};
  two.managed.array.data = two.buffer.data();
  CHECK_THROWS_WITH_AS((io::from_dlpack<bool, extents<dyn>>(&two.managed)),
                       "weft: from_dlpack: a bool element is neither 0 nor 1", value_error);
  foreign<io::dlpack_versioned_tensor> later({1}, {1}, code_of(0.0f));
  later.managed.major = 2;
  CHECK_THROWS_WITH_AS((io::from_dlpack<float, extents<dyn>>(&later.managed)),
                       doctest::Contains("DLPack version 2 is not supported"), value_error);
  foreign<managed> three({3}, {1}, code_of(0.0f));
  three.buffer.resize(12);
  three.managed.array.data = three.buffer.data();
  CHECK_THROWS_AS((io::from_dlpack<float, extents<4>>(&three.managed)), shape_error);
  CHECK(three.deleted + two.deleted + later.deleted == 0);
}
