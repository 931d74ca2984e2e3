// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include <weft/io/safetensors.hpp>
#include <weft/io/tensor_files.hpp>
#include <weft/weft.hpp>

using namespace weft;

namespace {
std::string file(const std::string& header, std::size_t data) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> 8 * i);
  return bytes + header + std::string(data, 'x');
}
io::stored_tensors read(const std::string& bytes) {
  return io::parse_safetensors(bytes, "test");
}
const std::string good = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";
std::string temporary(const char* name) { return (std::filesystem::temp_directory_path() / name).string(); }
}  // namespace

TEST_CASE("safetensors: what is written is read") {
  const std::string path = temporary("weft_test.safetensors");
  io::stored_tensors out;
  out.metadata["format"] = "pt";
  out.tensors["b"] = {dtype::u8, {1, {3}}, {1, 2, 3}};
  out.tensors["scalar \"x\""] = {dtype::f64, {}, std::vector<char>(8, 1)};
  out.tensors["empty"] = {dtype::f32, {2, {0, 5}}, {}};
  io::write_safetensors(path, out);
  const io::stored_tensors in = io::read_safetensors(path);
  CHECK(in.metadata == out.metadata);
  REQUIRE(in.tensors.size() == 3);
  CHECK(in.tensors.at("b").bytes == out.tensors["b"].bytes);
  CHECK(in.tensors.at("empty").extents == shape{2, {0, 5}});
  CHECK(std::filesystem::file_size(path) % 8 == 3);  // the header is padded to 8, then 8 + 3 bytes
  std::filesystem::remove(path);
}

TEST_CASE("safetensors: every malformed file is a clear error") {
  CHECK(read(file(good, 24)).tensors.size() == 1);
  CHECK(read(file(R"({"__metadata__":null,"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8))
            .tensors.size() == 1);
  const std::pair<std::string, std::string> bad[] = {
      {"1234567", "shorter than 8 bytes"},
      {"PK\3\4aaaa", "is a zip archive, such as a .pt file, which io::load reads"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8), "too large"},
      {file(good, 24).substr(0, 30), "beyond the end"},
      {file("[]", 0), "does not start with {"},
      {file("{", 0), "unexpected end"},
      {file(good, 23), "the header describes 24"},
      {file(good, 25), "the header describes 24"},
      {file(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]}})", 32), "is expected"},
      {file(R"({"a":{"dtype":"F32","shape":[2,4],"data_offsets":[0,24]}})", 24), "do not match"},
      {file(R"({"a":{"dtype":"F33","shape":[2,3],"data_offsets":[0,24]}})", 24), "unknown dtype"},
      {file(R"({"a":{"dtype":"F6_E2M3","shape":[3],"data_offsets":[0,3]}})", 3), "do not match"},
      {file(R"({"a":{"dtype":"I16","shape":[3],"data_offsets":[0,3]}})", 3), "do not match"},
      {file(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,24]}})", 24), "unsigned integer"},
      {file(R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,24]}})", 24), "unsigned integer"},
      {file(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,24]}})", 24),
       "overflows"},
      {file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
            R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            8),
       "duplicate key"},
      {file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
            R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
            12),
       "is expected"},
      {file(R"({"__metadata__":{"a":1}})", 0), "is not a string"},
      {file(R"({"a":7})", 0), "needs dtype"},
      {file(R"({"a":"\ud800"})", 0), "surrogate"},
      {file(R"({"a":{"dtype":"F32","shape":[01],"data_offsets":[0,4]}})", 4), "malformed number"},
      {file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,9223372036854775808]}})", 4),
       "unsigned integer of 63 bits"},
      {file(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})", 0), "is expected"},
      {file("", 0), "does not start with {"},
      {file("{\"\xff\":1}", 0), "is not UTF-8"},
      {file(std::string(100, '{'), 0), "expected a key"},
      {file("{\"a\":" + std::string(100, '['), 0), "nested too deeply"}};
  for (const auto& [bytes, words] : bad) {
    CAPTURE(words);
    try {
      read(bytes);
      FAIL_CHECK("no error");
    } catch (const io_error& e) {
      CHECK(std::string(e.what()).find(words) != std::string::npos);
    }
  }
}

TEST_CASE(
    "safetensors: a file of another kind, or a bool that is none, is named; the file that is there stays") {
  const std::string path = temporary("weft_kind.safetensors");
  std::filesystem::remove_all(path);
  std::filesystem::create_directory(path);
  CHECK_THROWS_WITH_AS(io::read_safetensors(path), doctest::Contains("is a folder, not a file"), io_error);
  CHECK_THROWS_WITH_AS(io::write_safetensors(path, {}), doctest::Contains("is a folder, not a file"),
                       io_error);
  CHECK_THROWS_WITH_AS(io::write_safetensors("/dev/null", {}), doctest::Contains("/dev/null: is a device"),
                       io_error);
  std::filesystem::remove(path);
  io::stored_tensors file;
  file.tensors["flag"] = {dtype::boolean, {1, {2}}, {1, 7}};
  io::write_safetensors(path, file);
  const auto flag = make_state(default_device(), {1, {2}}, dtype::boolean);
  CHECK_THROWS_WITH_AS(io::load(path, {{"flag", flag}}), doctest::Contains("has bytes other than 0 and 1"),
                       io_error);
  file.tensors["flag"].bytes.pop_back();
  CHECK_THROWS_WITH_AS(io::write_safetensors(path, file),
                       doctest::Contains("tensor flag has 1 bytes, but its shape needs 2"), io_error);
  CHECK(io::read_safetensors(path).tensors.at("flag").bytes.size() == 2);
  std::filesystem::remove(path);
}

TEST_CASE("load: a tensor that does not fit is named with both shapes, and nothing changes") {
  const std::string path = temporary("weft_load.safetensors");
  linear<3, 2> a, b;
  linear<3, 4> other;
  io::save(path, state_dict(a));
  io::load(path, state_dict(b));
  CHECK(b.weight.to_vector() == a.weight.to_vector());
  CHECK_THROWS_WITH_AS(io::load(path, state_dict(other)),
                       doctest::Contains("tensor weight is f32 [2, 3], but the model expects f32 [4, 3]"),
                       io_error);
  std::filesystem::remove(path);
}

TEST_CASE("restore: elements of another number than the shape says are refused, and nothing changes") {
  const auto t = full<float>(extents<dyn>{4}, 2.0f);
  for (const std::size_t bytes : {0, 12, 15, 17, 400}) {
    CAPTURE(bytes);
    const io::stored_tensor from{dtype::f32, t.extents(), std::vector<char>(bytes, 1)};
    CHECK_THROWS_WITH_AS(
        io::restore("x", "w", from, *t.state()),
        ("weft: x: tensor w has " + std::to_string(bytes) + " bytes, but f32 [4] needs 16").c_str(),
        io_error);
  }
  CHECK(t.to_vector() == std::vector<float>(4, 2.0f));
}

TEST_CASE("load: an index of several files; nothing changes if a part is wrong") {
  namespace fs = std::filesystem;
  const fs::path folder = temporary("weft_index_test");
  fs::remove_all(folder);
  fs::create_directory(folder);
  const auto a = from(extents<2>{}, {1.f, 2.f});
  const auto b = from(extents<3>{}, {3.f, 4.f, 5.f});
  io::save((folder / "one.safetensors").string(), {{"a", a.state()}, {"unused", b.state()}});
  io::save((folder / "two.safetensors").string(), {{"b", b.state()}});
  const std::string index = (folder / "model.safetensors.index.json").string();
  const auto write = [&](const std::string& map) {
    std::ofstream(index) << R"({"metadata": {"total_size": 20}, "weight_map": )" << map << "}";
  };
  const auto load = [&] {
    const auto x = zeros<float>(extents<2>{}), y = zeros<float>(extents<2>{});
    const auto z = zeros<float>(extents<3>{});
    try {
      io::load(index, {{"a", x.state()}, {"b", z.state()}});
    } catch (const io_error&) {
      CHECK(x.to_vector() == y.to_vector());
      throw;
    }
    CHECK(x.to_vector() == a.to_vector());
    CHECK(z.to_vector() == b.to_vector());
  };
  write(R"({"a": "one.safetensors", "b": "two.safetensors", "elsewhere": "absent.safetensors"})");
  load();
  CHECK(io::format_of(index) == io::file_format::index);
  CHECK(io::read_tensors(index, [](const std::string& n) { return n == "b"; }).tensors.size() == 1);
  CHECK_THROWS_WITH_AS(io::read_tensors(index), doctest::Contains("absent.safetensors"), io_error);
  const std::pair<const char*, const char*> bad[] = {
      {R"({"a": "one.safetensors"})", "b"},
      {R"({"a": "one.safetensors", "b": "one.safetensors"})", "has no \"b\", which"},
      {R"({"a": "one.safetensors", "b": "../two.safetensors"})",
       "is not the name of a file in the same folder"},
      {R"({"a": "one.safetensors", "b": ".."})", "is not the name of a file in the same folder"},
      {R"({"a": "one.safetensors", "b": ""})", "is not the name of a file in the same folder"},
      {R"({"a": "one.safetensors", "b": 2})", "is not the name of a file in the same folder"},
      {R"({"a": "one.safetensors", "b": "three.safetensors"})", "three.safetensors"},
      {R"({"a": "one.safetensors", "b": "model.safetensors.index.json"})",
       "the file of \"b\" is itself an index"},
      {R"(["a"])", "it has no \"weight_map\""},
      {R"({"a")", "model.safetensors.index.json"}};
  for (const auto& [map, why] : bad) {
    CAPTURE(map);
    write(map);
    CHECK_THROWS_WITH_AS(load(), doctest::Contains(why), io_error);
  }
  CHECK_THROWS_AS(io::save(index, {{"a", a.state()}}), value_error);
  fs::remove_all(folder);
}

TEST_CASE("load and save convert floating types on demand, and only then") {
  const std::string path = temporary("weft_test_convert.safetensors");
  const auto t = from(extents<2, 2>{}, std::vector<float>{1, 1.00390625f, -3.1415927f, 1e-30f});
  const auto labels = from(extents<2>{}, std::vector<std::int32_t>{1, 2});
  io::save(path, {{"t", t.state()}, {"labels", labels.state()}}, {.as = dtype::bf16});
  CHECK(io::read_safetensors(path).tensors.at("t").type == dtype::bf16);
  CHECK(io::read_safetensors(path).tensors.at("labels").type == dtype::i32);

  auto back = zeros<float>(extents<2, 2>{});
  auto back_labels = zeros<std::int32_t>(extents<2>{});
  const io::named_tensors both{{"t", back.state()}, {"labels", back_labels.state()}};
  CHECK_THROWS_WITH_AS(
      io::load(path, both),
      ("weft: " + path +
       ": tensor t is bf16 [2, 2], but the model expects f32 [2, 2]: load(path, tensors, {.convert = true}) "
       "converts")
          .c_str(),
      io_error);
  CHECK(back.to_vector() == std::vector<float>(4, 0.0f));
  io::load(path, both, {.convert = true});
  CHECK(back.to_vector() == eval(cast<float>(cast<bfloat16>(t))).to_vector());   // to nearest, ties to even
  CHECK(back_labels.to_vector() == labels.to_vector());

  auto wide = zeros<double>(extents<2, 2>{});
  auto half = zeros<float16>(extents<2, 2>{});
  io::load(path, {{"t", wide.state()}}, {.convert = true});
  io::load(path, {{"t", half.state()}}, {.convert = true});
  CHECK(wide.to_vector()[2] == static_cast<double>(back.to_vector()[2]));
  CHECK(half.to_vector()[3] == float16(0.0f));
  CHECK_THROWS_AS(io::load(path, {{"labels", back.state()}}, {.convert = true}), io_error);   // i32 is no f32
  CHECK_THROWS_AS(io::save(path, both, {.as = dtype::i32}), value_error);
  std::filesystem::remove(path);
}

TEST_CASE("save: names that would be lost or could not be read are refused, and no file is written") {
  const std::string path = temporary("weft_names.safetensors");
  std::filesystem::remove(path);
  const auto a = full<float>(extents<2>{}, 1.0f), b = full<float>(extents<2>{}, 2.0f);
  CHECK_THROWS_WITH_AS(io::save(path, {{"w", a.state()}, {"w", b.state()}}),
                       "weft: save: tensor w occurs twice", value_error);
  CHECK_THROWS_WITH_AS(io::save(path, {{"w\xff", a.state()}}),
                       "weft: safetensors: the name of tensor w\xff is not UTF-8", value_error);
  CHECK_THROWS_WITH_AS(io::save(path, {{"__metadata__", a.state()}}),
                       doctest::Contains("a tensor cannot be named __metadata__"), value_error);
  CHECK_THROWS_WITH_AS(io::save(path, {{"w", nullptr}}), "weft: save: tensor w is null", value_error);
  CHECK_THROWS_WITH_AS(io::save("", {{"w", a.state()}}), "weft: save: the path is empty", value_error);
  CHECK_THROWS_WITH_AS(io::save("", a), "weft: save: the path is empty", value_error);
  CHECK_THROWS_WITH_AS(io::save("w.pt", a), doctest::Contains(".pt files can be read but not written"),
                       value_error);
  CHECK_THROWS_AS(io::write_safetensors(path, {.metadata = {{"a", "\xc3"}}}), value_error);
  CHECK_THROWS_AS(io::write_safetensors(path, {.metadata = {{"\xc3", "a"}}}), value_error);
  CHECK(!std::filesystem::exists(path));
  io::save(path, {{"gr\xc3\xb6\xc3\x9f"
                   "e",
                   a.state()}});
  CHECK(
      io::read_safetensors(path).tensors.contains("gr\xc3\xb6\xc3\x9f"
                                                  "e"));
  CHECK_THROWS_WITH_AS(io::load(path, {{"w", nullptr}}), "weft: load: tensor w is null", value_error);
  std::filesystem::remove(path);
}

TEST_CASE("tensors of types that weft has not are named when they are wanted, and otherwise left alone") {
  const std::string header = R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                             R"("b":{"dtype":"I8","shape":[4],"data_offsets":[4,8]},)"
                             R"("c":{"dtype":"F4","shape":[3,2],"data_offsets":[8,11]},)"
                             R"("d":{"dtype":"U64","shape":[1],"data_offsets":[11,19]},)"
                             R"("e":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1],"data_offsets":[19,20]}})";
  const io::stored_tensors in = read(file(header, 20));
  CHECK(in.tensors.size() == 1);
  CHECK(in.others.size() == 4);
  CHECK(in.others.at("b") == "is of dtype I8, which weft does not support");
  const std::string path = temporary("weft_others.safetensors");
  CHECK_THROWS_WITH_AS(io::write_safetensors(path, in), doctest::Contains("tensor b is of dtype I8"),
                       value_error);
  std::ofstream(path, std::ios::binary) << file(header, 20);
  const auto t = zeros<float>(extents<>{});
  io::load(path, {{"a", t.state()}});
  CHECK_THROWS_WITH_AS(io::load(path, {{"d", t.state()}}),
                       ("weft: " + path + ": tensor d is of dtype U64, which weft does not support").c_str(),
                       io_error);
  CHECK_THROWS_WITH_AS(io::load(path, {{"e", t.state()}}), doctest::Contains("tensor e has 10 dims"),
                       io_error);
  CHECK_THROWS_WITH_AS(io::load(path, {{"f", t.state()}}), doctest::Contains("tensor f is missing"),
                       io_error);
  std::filesystem::remove(path);
}
