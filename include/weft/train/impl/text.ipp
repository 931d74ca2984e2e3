// SPDX-License-Identifier: MIT
// Definitions of <weft/train/text.hpp>.
#pragma once

#include <algorithm>
#include <filesystem>

#include <weft/base/config.hpp>
#include <weft/train/text.hpp>

namespace weft {

namespace detail {

WEFT_DEFINE void append_files(const std::string& folder, std::vector<std::string>& files) {
  namespace fs = std::filesystem;
  std::error_code failed;
  fs::directory_iterator entry(folder, failed);
  for (; !failed && entry != fs::directory_iterator(); entry.increment(failed)) {
    const std::string path = entry->path().string();
    std::error_code not_there;  // opening the file reports the error
    if (!fs::is_directory(path, not_there)) files.push_back(path);
    else if (!fs::is_symlink(path, not_there)) append_files(path, files);
    else
      refuse<io_error>(
          {"weft: ", path,
           ": is a link to a folder: links within a folder are not followed; name the folder it leads to"});
  }
  if (failed) refuse<io_error>({"weft: ", folder, ": ", failed.message()});
}

}  // namespace detail

WEFT_DEFINE std::vector<unsigned char> read_text(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code not_there;
    if (std::filesystem::is_directory(path, not_there)) detail::append_files(path, files);
    else files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  std::vector<unsigned char> bytes;
  for (const std::string& file : files) {
    const io::input_file in(file);
    const std::size_t before = bytes.size();
    bytes.resize(before + static_cast<std::size_t>(in.size()));
    in.read(0, reinterpret_cast<char*>(bytes.data()) + before, bytes.size() - before);
  }
  if (bytes.empty()) {
    std::string all;
    for (const std::string& path : paths) all += (all.empty() ? "" : ", ") + path;
    throw usage_error("weft: read_text: " + (all.empty() ? "no path is given" : all + ": no text"));
  }
  return bytes;
}

WEFT_DEFINE text_samples::text_samples(std::vector<unsigned char> bytes, index_t positions)
    : bytes_(std::move(bytes)), positions_(positions) {
  if (positions_ < 1)
    throw usage_error("weft: text_samples: the context must be 1 or more, not " + std::to_string(positions_) +
                      " positions");
  if (size() < 1)
    throw usage_error("weft: the text has " + std::to_string(bytes_.size()) +
                      " bytes, fewer than a context of " + std::to_string(positions_) +
                      " positions and its label");
}

WEFT_DEFINE void text_samples::read(index_t i, std::uint8_t* inputs, std::uint8_t* labels) const {
  const unsigned char* from = bytes_.data() + i * positions_;
  std::copy(from, from + positions_, inputs);
  std::copy(from + 1, from + 1 + positions_, labels);
}

}  // namespace weft
