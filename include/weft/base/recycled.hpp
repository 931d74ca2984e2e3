// SPDX-License-Identifier: MIT
// Allocation of small short-lived objects: handles, lists of operands, entries of tapes. Each thread caches
// freed blocks by size and reuses them, so that a steady training step does not allocate from the heap.
//
//   recycled_vector<void*> pointers;
//   std::shared_ptr<tensor_state> t = make_recycled<tensor_state>(device, extents, type);
#pragma once

#include <bit>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include <weft/base/poison.hpp>

namespace weft {

namespace detail {

/// Free blocks of one thread. Sizes are powers of two up to 1 MiB; a thread keeps at most 1 MiB, or four
/// blocks, of each size. Under AddressSanitizer nothing is cached, so that it detects every use after free.
class recycled_blocks {
 public:
  static constexpr bool recycles = !poisons;

  static void* take(std::size_t bytes);
  static void give(void* memory, std::size_t bytes) noexcept;

 private:
  struct block {
    block* next;
  };
  static constexpr std::size_t smallest = 32;
  static constexpr int sizes = 16;
  static constexpr int most_of(int size) {
    const int in_a_mebibyte = static_cast<int>((std::size_t{1} << 20) / (smallest << size));
    return !recycles ? 0 : in_a_mebibyte < 4 ? 4 : in_a_mebibyte;
  }

  /// Trivially destructible, so that static objects can still free memory at the end of the program.
  struct lists {
    block* first[sizes];
    int count[sizes];
  };
  /// Runs at thread exit, and leaves lists that are marked full, so that later frees go to the heap.
  struct cleaner {
    lists* of;
    ~cleaner();
  };

  static int size_of(std::size_t bytes) {
    return bytes <= smallest ? 0 : static_cast<int>(std::bit_width((bytes - 1) / smallest));
  }
  static lists& mine();
};

}  // namespace detail

/// A subset of std::vector with memory from the thread's block cache. std::vector is a hundred functions per
/// element type, which every program would compile (docs/why/0007-what-hello-compiles.md).
template <class T>
class recycled_vector {
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__,
                "weft: recycled memory is aligned as operator new does");

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  recycled_vector() = default;
  explicit recycled_vector(std::size_t size) : recycled_vector() { resize(size); }
  recycled_vector(std::size_t size, const T& value) : recycled_vector() {
    reserve(size);
    while (size_ < size) construct(value);
  }
  /// Copies of `count` elements from `values` on.
  recycled_vector(const T* values, std::size_t count) : recycled_vector() {
    reserve(count);
    while (size_ < count) construct(values[size_]);
  }
  recycled_vector(std::initializer_list<T> values) : recycled_vector(values.begin(), values.size()) {}
  recycled_vector(const recycled_vector& other) : recycled_vector(other.data_, other.size_) {}
  recycled_vector(recycled_vector&& other) noexcept { swap(other); }
  recycled_vector& operator=(recycled_vector other) noexcept {
    swap(other);
    return *this;
  }
  ~recycled_vector() {
    clear();
    if (data_) detail::recycled_blocks::give(data_, room_ * sizeof(T));
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T& front() { return data_[0]; }
  const T& front() const { return data_[0]; }
  T& back() { return data_[size_ - 1]; }
  const T& back() const { return data_[size_ - 1]; }

  /// Appends `value`; the argument may be an element of this vector.
  void push_back(T value) {
    if (size_ == room_) move_to(room_ ? 2 * room_ : 4);
    construct(std::move(value));
  }
  void pop_back() { data_[--size_].~T(); }
  void reserve(std::size_t size) {
    if (size > room_) move_to(size);
  }
  /// Appends copies of the elements [first, last), which must not be elements of this vector.
  void append(const T* first, const T* last) {
    for (; first != last; ++first) push_back(*first);
  }
  void assign(const T* first, const T* last) {
    clear();
    append(first, last);
  }
  /// New elements are value-initialized.
  void resize(std::size_t size) {
    while (size_ > size) pop_back();
    reserve(size);
    while (size_ < size) construct();
  }
  /// Removes the elements from `first` on.
  void erase_from(const T* first) {
    while (end() != first) pop_back();
  }
  void clear() {
    while (size_ > 0) pop_back();
  }
  void swap(recycled_vector& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(room_, other.room_);
  }

  friend bool operator==(const recycled_vector& a, const recycled_vector& b) {
    bool equal = a.size_ == b.size_;
    for (std::size_t i = 0; equal && i < a.size_; ++i) equal = a.data_[i] == b.data_[i];
    return equal;
  }

 private:
  template <class... Value>
  void construct(Value&&... value) {
    new (data_ + size_) T(std::forward<Value>(value)...);
    ++size_;
  }
  void move_to(std::size_t room) {
    static_assert(std::is_nothrow_move_constructible_v<T>);
    T* const to = static_cast<T*>(detail::recycled_blocks::take(room * sizeof(T)));
    for (std::size_t i = 0; i < size_; ++i) {
      new (to + i) T(std::move(data_[i]));
      data_[i].~T();
    }
    if (data_) detail::recycled_blocks::give(data_, room_ * sizeof(T));
    data_ = to;
    room_ = room;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0, room_ = 0;
};

namespace detail {
/// Destroys the object that make_recycled has placed beside it.
struct recycled_object {
  void* object = nullptr;
  void (*destroy)(void*) = nullptr;  // null until the object is constructed

  recycled_object() = default;
  recycled_object(const recycled_object&) = delete;
  recycled_object& operator=(const recycled_object&) = delete;
  ~recycled_object() {
    if (destroy) destroy(object);
  }
};

/// Memory for an object of `bytes` bytes, in one block with its reference count.
std::shared_ptr<recycled_object> recycled_memory(std::size_t bytes);
}  // namespace detail

/// std::make_shared with memory from the thread's block cache. All types share the functions for reference
/// counting.
template <class T, class... Arguments>
std::shared_ptr<T> make_recycled(Arguments&&... arguments) {
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__,
                "weft: recycled memory is aligned as operator new does");
  std::shared_ptr<detail::recycled_object> owner = detail::recycled_memory(sizeof(T));
  T* const made = new (owner->object) T(std::forward<Arguments>(arguments)...);
  owner->destroy = [](void* object) { static_cast<T*>(object)->~T(); };
  return {std::move(owner), made};
}

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/base/impl/recycled.ipp>
#endif
