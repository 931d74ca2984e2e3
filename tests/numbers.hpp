// SPDX-License-Identifier: MIT
// The numbers in the files that tests/agree/make_files.py writes, and files that tests write themselves.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <weft/base/crc32.hpp>
#include <weft/io/stored_tensor.hpp>
#include <weft/io/zip.hpp>

/// Element i is (7 i mod 23 - 4) / 4 for floating types, 7 i mod 23 - 4 for signed integers, 7 i mod 23 for
/// u8 and whether 3 divides i for bool.
inline weft::io::stored_tensor numbers(weft::dtype type, const weft::shape& extents) {
  weft::io::stored_tensor t{type, extents, {}};
  t.bytes.resize(weft::bytes_of(extents, type));
  weft::visit_type(type, [&]<class T>(T) {
    for (weft::index_t i = 0; i < extents.size(); ++i) {
      const int n = static_cast<int>(7 * i % 23);
      T x{};
      if constexpr (std::is_same_v<T, bool>) x = i % 3 == 0;
      else if constexpr (std::is_same_v<T, std::uint8_t>) x = static_cast<T>(n);
      else if constexpr (std::is_integral_v<T>) x = n - 4;
      else x = static_cast<T>(static_cast<float>(n - 4) / 4);
      std::memcpy(t.bytes.data() + static_cast<std::size_t>(i) * sizeof(T), &x, sizeof(T));
    }
  });
  return t;
}

inline bool is_numbers(const weft::io::stored_tensor& t, weft::dtype type, const weft::shape& extents) {
  return t.type == type && t.extents == extents && t.bytes == numbers(type, extents).bytes;
}

/// The dtype whose name, by name_of, is `name`.
inline weft::dtype type_named(std::string_view name) {
  for (int i = 0; i < 8; ++i)
    if (name == weft::name_of(static_cast<weft::dtype>(i))) return static_cast<weft::dtype>(i);
  throw weft::value_error("no dtype " + std::string(name));
}

/// A file in the folder for temporary files, removed by the destructor.
class temporary_file {
 public:
  explicit temporary_file(const char* name)
      : path_((std::filesystem::temp_directory_path() / name).string()) {
    std::filesystem::remove_all(path_);
  }
  temporary_file(const char* name, std::string_view bytes) : temporary_file(name) { write(bytes); }
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;
  ~temporary_file() { std::filesystem::remove_all(path_); }

  operator const std::string&() const { return path_; }
  std::string operator+(const char* text) const { return path_ + text; }
  void write(std::string_view bytes) const {
    std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  std::string bytes() const { return weft::io::input_file(path_).text(); }

 private:
  std::string path_;
};

/// A zip archive of `contents`, pairs of name and bytes.
inline std::string archive(const std::vector<std::pair<std::string, std::string>>& contents) {
  std::string zip;
  std::vector<weft::io::zip_member> members;
  for (const auto& [name, content] : contents) {
    members.push_back({name, zip.size(), content.size(), content.size(), 0, weft::crc32(content)});
    zip += weft::io::detail::zip_local_header(members.back()) + content;
  }
  return zip + weft::io::detail::zip_directory(members, zip.size());
}

/// Calls f(bytes) with every prefix of a file, and with every byte changed in several ways. If f throws, it
/// must be io_error.
template <class F>
void for_each_damage(const std::string& bytes, F f) {
  const auto attempt = [&](const std::string& damaged) {
    try {
      f(damaged);
    } catch (const weft::io_error&) {}
  };
  for (std::size_t size = 0; size < bytes.size(); ++size) attempt(bytes.substr(0, size));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    for (const int change : {0x01, 0x02, 0x10, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ change);
      attempt(damaged);
    }
}
