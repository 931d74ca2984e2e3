// SPDX-License-Identifier: MIT
// Definitions of <weft/io/zip.hpp>.
#pragma once

#include <algorithm>

#include <weft/base/config.hpp>
#include <weft/base/little_endian.hpp>
#include <weft/base/crc32.hpp>
#include <weft/io/inflate.hpp>
#include <weft/io/json_parser.hpp>
#include <weft/io/zip.hpp>

namespace weft {
namespace io {
namespace detail {

/// The number of `bytes` bytes at `at`, little-endian.
inline std::uint64_t zip_number(std::string_view from, std::size_t at, std::size_t bytes) {
  return weft::detail::little_endian(from.substr(at, bytes));
}
/// Appends (number, bytes) one after the other, little-endian.
inline void put_zip_numbers(std::string& to,
                            std::initializer_list<std::pair<std::uint64_t, unsigned>> numbers) {
  for (const auto& [n, bytes] : numbers)
    for (unsigned i = 0; i < bytes; ++i) to += static_cast<char>(n >> 8 * i);
}

inline constexpr std::uint64_t zip_unknown = 0xffffffff;  // in place of a number that does not fit
inline constexpr std::uint64_t zip_limit = 0x7fffffff;    // beyond this, Python's zipfile writes 64 bits
inline constexpr std::size_t zip_end_bytes = 22, zip_locator_bytes = 20, zip_end_64_bytes = 56,
                             zip_entry_bytes = 46, zip_local_bytes = 30;

}  // namespace detail

WEFT_DEFINE void zip_file::fail(std::initializer_list<message_part> why) const {
  refuse<io_error>({"weft: ", path(), ": zip: ", weft::detail::joined(why)});
}

WEFT_DEFINE zip_file::zip_file(std::string path) : file_(std::move(path)) {
  const place where = find_directory();
  std::string directory(static_cast<std::size_t>(where.bytes), '\0');
  file_.read(where.at, directory.data(), directory.size());
  read_directory(directory, where);
  require_apart();
}

WEFT_DEFINE zip_file::place zip_file::find_directory() const {
  const auto most = static_cast<std::size_t>(std::min<std::uint64_t>(size(), detail::zip_end_bytes + 0xffff));
  std::string tail(most, '\0');
  file_.read(size() - most, tail.data(), most);
  std::size_t end = tail.npos;
  for (std::size_t i = most < detail::zip_end_bytes ? 0 : most - detail::zip_end_bytes + 1;
       i-- > 0 && end == tail.npos;)
    if (std::string_view(tail).substr(i, 4) == "PK\5\6" &&
        detail::zip_number(tail, i + 20, 2) == most - i - detail::zip_end_bytes)
      end = i;
  if (end == tail.npos) fail({"no end of the directory: the file is incomplete or not an archive"});
  const auto in_tail = [&](std::size_t at, std::size_t bytes) {
    return detail::zip_number(tail, end + at, bytes);
  };
  if (in_tail(4, 2) != 0 || in_tail(6, 2) != 0 || in_tail(8, 2) != in_tail(10, 2))
    fail({"the archive has several parts"});
  place where{in_tail(16, 4), in_tail(12, 4), in_tail(10, 2)};
  std::uint64_t limit = size() - most + end;
  const bool is_large =
      where.at == detail::zip_unknown || where.bytes == detail::zip_unknown || where.members == 0xffff;
  if (is_large && end >= detail::zip_locator_bytes &&
      std::string_view(tail).substr(end - detail::zip_locator_bytes, 4) == "PK\6\7") {
    const std::uint64_t at = detail::zip_number(tail, end - detail::zip_locator_bytes + 8, 8);
    std::string record(detail::zip_end_64_bytes, '\0');
    if (at > limit || limit - at < record.size())
      fail({"the 64-bit end of the directory is not in the file"});
    file_.read(at, record.data(), record.size());
    if (!record.starts_with("PK\6\6")) fail({"no 64-bit end of the directory"});
    limit = at;
    where = {detail::zip_number(record, 48, 8), detail::zip_number(record, 40, 8),
             detail::zip_number(record, 32, 8)};
  }
  if (where.at > limit || where.bytes > limit - where.at) fail({"the directory is not in the file"});
  return where;
}

WEFT_DEFINE void zip_file::read_directory(std::string_view directory, const place& where) {
  std::uint64_t count = 0;
  for (; !directory.empty(); ++count) {
    if (directory.size() < detail::zip_entry_bytes || !directory.starts_with("PK\1\2"))
      fail({"entry ", count, " of the directory is malformed"});
    const auto number = [&](std::size_t at, std::size_t bytes) {
      return detail::zip_number(directory, at, bytes);
    };
    const auto name = static_cast<std::size_t>(number(28, 2)),
               extra = static_cast<std::size_t>(number(30, 2));
    const std::size_t bytes =
        detail::zip_entry_bytes + name + extra + static_cast<std::size_t>(number(32, 2));
    if (directory.size() < bytes) fail({"entry ", count, " of the directory is malformed"});
    zip_member m{std::string(directory.substr(detail::zip_entry_bytes, name)),
                 number(42, 4),
                 number(24, 4),
                 number(20, 4),
                 static_cast<std::uint16_t>(number(10, 2)),
                 static_cast<std::uint32_t>(number(16, 4))};
    std::string_view fields = directory.substr(detail::zip_entry_bytes + name, extra);
    while (fields.size() >= 4) {
      const auto size = static_cast<std::size_t>(detail::zip_number(fields, 2, 2));
      if (fields.size() - 4 < size) break;
      std::string_view field = fields.substr(4, size);
      if (detail::zip_number(fields, 0, 2) == 1)
        for (std::uint64_t* n : {&m.size, &m.bytes, &m.at})
          if (*n == detail::zip_unknown && field.size() >= 8) {
            *n = detail::zip_number(field, 0, 8);
            field.remove_prefix(8);
          }
      fields.remove_prefix(4 + size);
    }
    if (number(8, 2) & 1) fail({"member ", m.name, " is encrypted"});
    if (m.at > where.at || where.at - m.at < detail::zip_local_bytes + name ||
        m.bytes > where.at - m.at - detail::zip_local_bytes - name)
      fail({"member ", m.name, " is not in the file"});
    if (m.method == 0 ? m.size != m.bytes : m.size / most_inflation > m.bytes)
      fail({"member ", m.name, " of ", m.bytes, " bytes cannot inflate to ", m.size});
    directory.remove_prefix(bytes);
    const std::string key = m.name;
    if (!members_.emplace(key, std::move(m)).second) fail({"member ", key, " occurs twice"});
  }
  if (count != where.members) fail({"the directory has ", count, " members instead of ", where.members});
}

WEFT_DEFINE void zip_file::require_apart() const {
  std::vector<const zip_member*> order;
  for (const auto& [name, m] : members_) order.push_back(&m);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->at < b->at; });
  for (std::size_t i = 1; i < order.size(); ++i)
    if (order[i]->at - order[i - 1]->at <
        detail::zip_local_bytes + order[i - 1]->name.size() + order[i - 1]->bytes)
      fail({"members ", order[i - 1]->name, " and ", order[i]->name, " overlap"});
}

WEFT_DEFINE std::vector<char> zip_file::read(const zip_member& m) const {
  if (m.method != 0 && m.method != 8)
    fail({"member ", m.name, " is compressed by method ", m.method, ": weft reads stored and deflated ones"});
  std::string header(detail::zip_local_bytes + m.name.size(), '\0');
  file_.read(m.at, header.data(), header.size());
  if (!header.starts_with("PK\3\4") || detail::zip_number(header, 26, 2) != m.name.size() ||
      !header.ends_with(m.name))
    fail({"member ", m.name, " has the header of another member"});
  const std::uint64_t data = m.at + header.size() + detail::zip_number(header, 28, 2);
  std::vector<char> bytes(static_cast<std::size_t>(m.bytes));
  file_.read(data, bytes.data(), bytes.size());
  if (m.method == 8) {
    std::vector<char> inflated(static_cast<std::size_t>(m.size));
    inflate({bytes.data(), bytes.size()}, inflated.data(), inflated.size(), path() + ": member " + m.name);
    bytes = std::move(inflated);
  }
  if (m.crc != 0 && crc32({bytes.data(), bytes.size()}) != m.crc)
    fail({"member ", m.name, " is corrupt: its CRC-32 does not match"});
  return bytes;
}

namespace detail {

WEFT_DEFINE std::string zip_local_header(const zip_member& m) {
  const bool is_ascii = std::all_of(m.name.begin(), m.name.end(), [](char c) { return (c & 0x80) == 0; });
  std::string header = "PK\3\4";
  put_zip_numbers(header, {{45, 2},
                           {is_ascii ? 0 : 0x800, 2},
                           {0, 2},
                           {0, 2},
                           {0x21, 2},
                           {m.crc, 4},
                           {zip_unknown, 4},
                           {zip_unknown, 4},
                           {m.name.size(), 2},
                           {20, 2}});
  header += m.name;
  put_zip_numbers(header, {{1, 2}, {16, 2}, {m.size, 8}, {m.bytes, 8}});
  return header;
}

WEFT_DEFINE std::string zip_directory(const std::vector<zip_member>& members, std::uint64_t at) {
  std::string all;
  for (const zip_member& m : members) {
    const bool is_large = m.size > zip_limit, is_far = m.at > zip_limit;
    std::string extra;
    if (is_large || is_far) put_zip_numbers(extra, {{1, 2}, {is_large * 16u + is_far * 8u, 2}});
    if (is_large) put_zip_numbers(extra, {{m.size, 8}, {m.bytes, 8}});
    if (is_far) put_zip_numbers(extra, {{m.at, 8}});
    const std::string local = zip_local_header(m);
    all += "PK\1\2";
    put_zip_numbers(all, {{45 | 3 << 8, 2}});  // made by a Unix system
    all += local.substr(4, 14);                // from the version to the CRC
    put_zip_numbers(all, {{is_large ? zip_unknown : m.bytes, 4},
                          {is_large ? zip_unknown : m.size, 4},
                          {m.name.size(), 2},
                          {extra.size(), 2},
                          {0, 2},
                          {0, 2},
                          {0, 2},
                          {0600 << 16, 4},
                          {is_far ? zip_unknown : m.at, 4}});
    all += m.name + extra;
  }
  const std::uint64_t bytes = all.size(), count = members.size();
  if (count > 0xffff || at > zip_limit || bytes > zip_limit) {
    all += "PK\6\6";
    put_zip_numbers(all,
                    {{44, 8}, {45, 2}, {45, 2}, {0, 4}, {0, 4}, {count, 8}, {count, 8}, {bytes, 8}, {at, 8}});
    all += "PK\6\7";
    put_zip_numbers(all, {{0, 4}, {at + bytes, 8}, {1, 4}});
  }
  all += "PK\5\6";
  const std::uint64_t shown = std::min<std::uint64_t>(count, 0xffff);
  put_zip_numbers(all, {{0, 4},
                        {shown, 2},
                        {shown, 2},
                        {std::min(bytes, zip_unknown), 4},
                        {std::min(at, zip_unknown), 4},
                        {0, 2}});
  return all;
}

}  // namespace detail

WEFT_DEFINE void write_zip(file_calls& calls, const std::string& path,
                           const std::vector<zip_content>& members) {
  for (const zip_content& c : members)
    if (c.name.size() > 0xffff || c.name.find('\0') != c.name.npos || !detail::is_utf8(c.name))
      refuse<value_error>({"weft: zip: the name ", c.name, " is too long or not UTF-8"});
  replacement_file file(calls, path);
  std::vector<zip_member> written;
  std::uint64_t at = 0;
  for (const zip_content& c : members) {
    zip_member m{.name = c.name, .at = at};
    for (const std::string_view part : c.parts) m.size += part.size(), m.crc = crc32(part, m.crc);
    m.bytes = m.size;
    const std::string header = detail::zip_local_header(m);
    file.append(header);
    for (const std::string_view part : c.parts) file.append(part);
    at += header.size() + m.size;
    written.push_back(std::move(m));
  }
  file.append(detail::zip_directory(written, at));
  file.finish();
}

}  // namespace io
}  // namespace weft
