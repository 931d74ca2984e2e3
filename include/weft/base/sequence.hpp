// SPDX-License-Identifier: MIT
// A growing array for constant expressions.
//
// The passes over the graph run in the compiler, where each call costs about a microsecond. std::vector is
// constexpr since C++20, but takes twice as long (docs/why/0001-sequence.md).
//
//   constexpr int n = [] { sequence<int> s; s.push_back(7); return s.size(); }();
#pragma once

#include <initializer_list>
#include <utility>

namespace weft {

/// A subset of std::vector, with int sizes and without bounds checks.
template <class T>
class sequence {
 public:
  constexpr sequence() = default;
  constexpr sequence(std::initializer_list<T> values) {
    for (const T& value : values) push_back(value);
  }
  constexpr sequence(int size, const T& value) : data_(new_elements(size)), size_(size), room_(size) {
    for (int i = 0; i < size; ++i) data_[i] = value;
  }
  constexpr sequence(const sequence& other)
      : data_(other.size_ ? new_elements(other.size_) : nullptr), size_(other.size_), room_(other.size_) {
    for (int i = 0; i < size_; ++i) data_[i] = other.data_[i];
  }
  constexpr sequence(sequence&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        room_(std::exchange(other.room_, 0)) {}
  constexpr sequence& operator=(sequence other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(room_, other.room_);
    return *this;
  }
  constexpr ~sequence() { delete[] data_; }

  constexpr int size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr T& operator[](int i) { return data_[i]; }
  constexpr const T& operator[](int i) const { return data_[i]; }
  constexpr T* begin() { return data_; }
  constexpr T* end() { return data_ + size_; }
  constexpr const T* begin() const { return data_; }
  constexpr const T* end() const { return data_ + size_; }
  constexpr T& back() { return data_[size_ - 1]; }
  constexpr const T& back() const { return data_[size_ - 1]; }
  constexpr void pop_back() { --size_; }

  /// Appends `value`; the argument may be an element of this sequence.
  constexpr void push_back(T value) {
    if (size_ == room_) grow();
    data_[size_++] = std::move(value);
  }

  constexpr bool contains(const T& value) const {
    for (int i = 0; i < size_; ++i)
      if (data_[i] == value) return true;
    return false;
  }

 private:
  static constexpr T* new_elements(int n) { return new T[static_cast<unsigned>(n)]; }
  constexpr void grow() {
    const int room = room_ ? 2 * room_ : 8;
    T* larger = new_elements(room);
    for (int i = 0; i < size_; ++i) larger[i] = std::move(data_[i]);
    delete[] data_;
    data_ = larger;
    room_ = room;
  }

  T* data_ = nullptr;
  int size_ = 0;
  int room_ = 0;
};

}  // namespace weft
