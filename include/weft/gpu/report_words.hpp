// SPDX-License-Identifier: MIT
// To which threads the words in device memory belong where native ops report invalid operands.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace weft::gpu {

/// A thread has a word from its first native op until it has waited, and then asks for reports there. The
/// words of threads that have ended without a wait go to the next thread that waits. Not thread-safe.
class report_words {
 public:
  /// The number of words; if more threads need one, several share a word, and its reports.
  static constexpr std::size_t count = 64;

  /// The word of this thread.
  std::size_t own();
  /// The words in which this thread is to look for reports. They are its words from now on.
  std::vector<std::size_t> asked();
  /// This thread has read and cleared these words.
  void give_back(std::span<const std::size_t> words);

 private:
  using thread_mark = std::shared_ptr<const int>;  // which the thread alone owns
  static const thread_mark& this_thread();
  std::array<std::vector<std::weak_ptr<const int>>, count> users_;
};

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/report_words.ipp>
#endif
