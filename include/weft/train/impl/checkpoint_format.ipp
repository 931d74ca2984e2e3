// SPDX-License-Identifier: MIT
// Definitions of <weft/train/checkpoint_format.hpp>.
#pragma once

#include <charconv>

#include <weft/base/config.hpp>
#include <weft/base/number.hpp>
#include <weft/train/checkpoint_format.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE std::string hex_of(std::uint64_t n) {
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; n >>= 4) text[i] = "0123456789abcdef"[n & 15];
  return text;
}

WEFT_DEFINE std::optional<std::uint64_t> parse_hex(std::string_view text) {
  std::uint64_t n = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), n, 16);
  if (r.ec != std::errc() || r.ptr != text.data() + text.size() || hex_of(n) != text) return {};
  return n;
}

WEFT_DEFINE std::optional<std::vector<std::uint64_t>> hex_numbers_in(std::string_view text) {
  if (text.size() % 17) return {};
  std::vector<std::uint64_t> numbers;
  for (; !text.empty(); text.remove_prefix(17)) {
    const auto n = parse_hex(text.substr(1, 16));
    if (text[0] != ' ' || !n) return {};
    numbers.push_back(*n);
  }
  return numbers;
}

WEFT_DEFINE std::optional<std::int64_t> parse_count(std::string_view text, std::int64_t most) {
  const auto n = parse_number<std::int64_t>(text);
  return n && *n >= 0 && *n <= most && std::to_string(*n) == text ? n : std::nullopt;
}

WEFT_DEFINE std::optional<checkpoint_name> checkpoint_name::parsed(std::string_view text) {
  const std::size_t dot = text.find('.'), end = std::min(text.find('.', dot + 1), text.size());
  if (!text.starts_with("step-") || dot == text.npos) return {};
  const auto step = parse_count(text.substr(5, dot - 5)),
             serial = parse_count(text.substr(dot + 1, end - dot - 1));
  if (!step || !serial) return {};
  return checkpoint_name{*step, *serial, std::string(text.substr(end))};
}

WEFT_DEFINE std::string sealed(const std::string& members) {
  const std::string rest = members + "}\n";
  return "{\"xxh64\": \"" + hex_of(xxh64(rest)) + "\"" + rest;
}

WEFT_DEFINE io::json unsealed(const std::string& text, const std::string& path) {
  constexpr std::string_view begin = "{\"xxh64\": \"";
  const std::string_view all = text;
  const auto sum = all.size() > begin.size() + 17 ? parse_hex(all.substr(begin.size(), 16)) : std::nullopt;
  if (!sum || !all.starts_with(begin) || all[begin.size() + 16] != '"')
    throw io_error("weft: " + path +
                   ": is damaged, or of another version of weft: it does not begin with its checksum");
  if (xxh64(all.substr(begin.size() + 17)) != *sum)
    throw io_error("weft: " + path + ": is damaged: its checksum does not match");
  return io::json(text, path);
}

WEFT_DEFINE std::int64_t number_of(const io::json_value& object, const char* key, const std::string& path,
                                   std::int64_t least, std::int64_t most) {
  const auto value = object.find(key);
  if (!value) throw io_error("weft: " + path + ": has no " + key);
  const auto n = value->integer();
  if (!n || *n < least || *n > most)
    throw io_error("weft: " + path + ": " + key + " is " + std::string(value->text().substr(0, 40)) +
                   ", not an integer from " + std::to_string(least) + " to " + std::to_string(most));
  return *n;
}

WEFT_DEFINE std::string text_of(const io::json_value& object, const char* key, const std::string& path) {
  const auto value = object.find(key);
  if (!value || value->kind() != io::json_kind::string) throw io_error("weft: " + path + ": has no " + key);
  return std::string(value->text());
}

WEFT_DEFINE std::uint64_t sum_of(const io::json_value& object, const char* key, const std::string& path) {
  const auto n = parse_hex(text_of(object, key, path));
  if (!n) throw io_error("weft: " + path + ": " + key + " is not 16 hexadecimal digits");
  return *n;
}

WEFT_DEFINE std::string checkpoint_index::text() const {
  const auto number = [](const char* key, std::int64_t n) {
    return std::string(", \"") + key + "\": " + std::to_string(n);
  };
  std::string t = number("version", checkpoint_version) + ", \"run\": \"" + hex_of(id.run) +
                  "\", \"attempt\": \"" + hex_of(id.attempt) + "\"" + number("step", id.name.step) +
                  number("serial", id.name.serial) + number("samples", samples) +
                  number("optimizer_steps", optimizer_steps) + number("loss_scale_log2", loss_scale_log2) +
                  number("growth_tracker", growth_tracker);
  if (!optimizer.empty()) t += ", \"optimizer\": " + io::json_string(optimizer);
  if (!random.empty()) t += ", \"random\": " + io::json_string(hex_text_of(random));
  t += ", \"shards\": [";
  for (std::size_t p = 0; p < shards.size(); ++p)
    t += std::string(p ? ", " : "") + "{\"bytes\": " + std::to_string(shards[p].bytes) +
         ", \"header_xxh64\": \"" + hex_of(shards[p].header) + "\"}";
  return sealed(t + "]");
}

WEFT_DEFINE checkpoint_index checkpoint_index::parsed(const std::string& text, const std::string& path) {
  const io::json json = unsealed(text, path);
  const io::json_value root = json.root();
  const std::int64_t version = number_of(root, "version", path);
  if (version < oldest_checkpoint_version || version > checkpoint_version)
    throw io_error("weft: " + path + ": was written by " +
                   (version > checkpoint_version ? "a later" : "an earlier") + " version of weft: format " +
                   std::to_string(version) + ", but this one reads " +
                   std::to_string(oldest_checkpoint_version) + " to " + std::to_string(checkpoint_version));
  checkpoint_index i;
  i.id = {sum_of(root, "run", path),
          sum_of(root, "attempt", path),
          {number_of(root, "step", path), number_of(root, "serial", path)}};
  i.samples = number_of(root, "samples", path);
  i.optimizer_steps = number_of(root, "optimizer_steps", path);
  i.loss_scale_log2 = number_of(root, "loss_scale_log2", path, -24, 100);  // the range of loss_scaler
  i.growth_tracker = number_of(root, "growth_tracker", path);
  if (root.find("optimizer")) i.optimizer = text_of(root, "optimizer", path);
  if (root.find("random")) {
    auto numbers = hex_numbers_in(text_of(root, "random", path));
    if (!numbers) throw io_error("weft: " + path + ": random is not a list of numbers");
    i.random = std::move(*numbers);
  }
  const auto list = root.find("shards");
  if (!list || list->size() < 1 || list->size() > static_cast<std::size_t>(max_parts))
    throw io_error("weft: " + path + ": has no list of 1 to " + std::to_string(max_parts) + " shards");
  list->for_each_item([&](const io::json_value& shard) {
    i.shards.push_back({number_of(shard, "bytes", path), sum_of(shard, "header_xxh64", path)});
  });
  if (i.shards.empty()) throw io_error("weft: " + path + ": shards is not a list");
  return i;
}

WEFT_DEFINE std::string latest_checkpoint::text() const {
  return sealed(", \"folder\": \"" + name.text() + "\", \"index_xxh64\": \"" + hex_of(index) + "\"");
}

WEFT_DEFINE latest_checkpoint latest_checkpoint::parsed(const std::string& text, const std::string& path) {
  const io::json json = unsealed(text, path);
  const auto name = checkpoint_name::parsed(text_of(json.root(), "folder", path));
  if (!name || !name->suffix.empty())
    throw io_error("weft: " + path + ": does not name a folder of this place");
  return {*name, sum_of(json.root(), "index_xxh64", path)};
}

WEFT_DEFINE std::optional<piece_note> piece_note::parsed(std::string_view text) {
  const std::size_t slash = std::min(text.find('/'), text.size()),
                    space = std::min(text.find(' '), text.size());
  if (slash >= space || space == text.size()) return {};
  const auto offset = numbers_in(text.substr(0, slash)),
             whole = numbers_in(text.substr(slash + 1, space - slash - 1));
  if (!offset || !whole || offset->order != whole->order) return {};
  auto sums = hex_numbers_in(text.substr(space));
  if (!sums) return {};
  return piece_note{*offset, *whole, std::move(*sums)};
}

WEFT_DEFINE std::string piece_note::text_of(const shape& s) {
  std::string t;
  for (int d = 0; d < s.order; ++d) t += (d ? "," : "") + std::to_string(s[d]);
  return t;
}

WEFT_DEFINE std::optional<shape> piece_note::numbers_in(std::string_view text) {
  shape s;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const auto n = parse_count(text.substr(0, comma));
    if (!n || s.order == max_order) return {};
    s.append(*n);
    if (comma == text.size()) return s;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace detail
}  // namespace weft
