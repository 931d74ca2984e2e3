// SPDX-License-Identifier: MIT
// A log of lines. Each is written whole at once; a failure is an error.
//
//   line_log log("run.jsonl", true);     // appends
//   log.line("{\"step\": 1}");
#pragma once

#include <string>

#include <weft/io/files.hpp>

namespace weft {

/// A file, or other sink, to which lines are appended. Not thread-safe.
class line_log {
 public:
  /// Discards all lines.
  line_log() = default;
  /// Opens a file, a terminal, a device, or a FIFO that has a reader; truncates a file unless `append`. After
  /// a last line without an end, as a crash leaves it, the first line begins a new one. Throws io_error if it
  /// cannot be opened for writing.
  line_log(std::string path, bool append);

  /// Writes `text` and a newline. Throws io_error if that fails, for example because nobody reads a FIFO any
  /// more; a file is then truncated to what it held.
  void line(const std::string& text);

 private:
  std::string path_;
  descriptor file_;
  bool is_in_line_ = false;  // the file does not end with a newline
};

}  // namespace weft

#ifndef WEFT_COMPILED
#include <weft/train/impl/line_log.ipp>
#endif
