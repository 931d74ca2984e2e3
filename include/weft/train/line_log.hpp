// SPDX-License-Identifier: MIT
// A log of lines. Each line is written by a single call; a failed write throws.
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
  /// Opens a file, a terminal, a device, or a FIFO that has a reader; truncates a file unless `append`. If
  /// the last line in the file has no newline, as after a crash, the first new line starts on a line of its
  /// own. Throws io_error if it cannot be opened for writing.
  line_log(std::string path, bool append);

  /// Writes `text` and a newline. Throws io_error if that fails, for example because a FIFO has no reader any
  /// more; a file is then truncated to its previous content.
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
