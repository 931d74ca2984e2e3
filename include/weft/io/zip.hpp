// SPDX-License-Identifier: MIT
// Zip archives as written by NumPy and PyTorch: stored and deflated members, also more than 4 GiB and more
// than 65535 members, with CRC-32.
//
//   const io::zip_file zip("weights.npz");
//   for (const auto& [name, member] : zip.members()) use(name, zip.read(member));
//
// Archives are untrusted: positions are checked, members may not overlap, and no more memory is used than
// 1032 times the bytes of a member (most_inflation). Encrypted members, multi-part archives and other
// compression methods are refused.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/io/files.hpp>

namespace weft::io {

/// A file in an archive.
struct zip_member {
  std::string name;
  std::uint64_t at = 0;  // offset of its local header
  std::uint64_t size = 0;
  std::uint64_t bytes = 0;   // size in the archive, without its header
  std::uint16_t method = 0;  // 0: stored, 8: deflated
  std::uint32_t crc = 0;
};

/// An archive opened for reading.
class zip_file {
 public:
  /// Throws io_error, naming the fault, if the file is not an archive or is one that is refused.
  explicit zip_file(std::string path);

  const std::string& path() const { return file_.path(); }
  /// Size of the archive in bytes.
  std::uint64_t size() const { return file_.size(); }
  /// By name.
  const std::map<std::string, zip_member>& members() const { return members_; }
  /// The member `name`; null if there is none.
  const zip_member* find(const std::string& name) const {
    const auto found = members_.find(name);
    return found == members_.end() ? nullptr : &found->second;
  }

  /// The content of a member. Throws io_error if it does not match the directory; a CRC of 0 is not checked,
  /// because torch.save writes 0 if it does not compute one.
  std::vector<char> read(const zip_member& m) const;

 private:
  [[noreturn, gnu::cold]] void fail(std::initializer_list<message_part> why) const;

  /// The position of the directory, and the number of members.
  struct place {
    std::uint64_t at = 0, bytes = 0, members = 0;
  };
  place find_directory() const;
  void read_directory(std::string_view directory, const place& where);
  void require_apart() const;

  input_file file_;
  std::map<std::string, zip_member> members_;
};

/// A member to be written: its name, and its content in parts.
struct zip_content {
  std::string name;
  file_parts parts;
};

namespace detail {
/// The local header of a stored member.
std::string zip_local_header(const zip_member& m);
/// The directory of an archive of these members, at offset `at`, and the records after it.
std::string zip_directory(const std::vector<zip_member>& members, std::uint64_t at);
}  // namespace detail

/// Writes an archive of stored members, replacing an existing file atomically; the bytes are the same as
/// those of Python's zipfile when called by numpy.savez. Throws io_error on failure, value_error for a name
/// that is not UTF-8, has a NUL or takes more than 65535 bytes.
void write_zip(file_calls& calls, const std::string& path, const std::vector<zip_content>& members);

}  // namespace weft::io

#ifndef WEFT_COMPILED
#include <weft/io/impl/zip.ipp>
#endif
