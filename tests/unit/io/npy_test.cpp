// SPDX-License-Identifier: MIT
// Files that NumPy wrote (tests/agree/make_files.py), and files built from the format's description.
#include <doctest/doctest.h>

#include <weft/io/npy.hpp>
#include <weft/io/tensor_files.hpp>
#include <weft/weft.hpp>

#include "../../memory_file.hpp"
#include "../../numbers.hpp"

using namespace weft;

namespace {

const std::string data = WEFT_TEST_DATA "/";

/// "2x0x3" as a shape.
shape shape_named(std::string_view text) {
  shape s;
  while (!text.empty()) {
    s.append(std::stoll(std::string(text)));
    text.remove_prefix(std::min(text.find('x'), text.size() - 1) + 1);
  }
  return s;
}

std::string npy(const std::string& header, std::size_t bytes) {
  std::string file("\x93NUMPY\1\0", 8);
  file += static_cast<char>(header.size());
  file += static_cast<char>(header.size() >> 8);
  return file + header + std::string(bytes, '\1');
}

}  // namespace

TEST_CASE("npy, npz: arrays of NumPy are read, and written with the same bytes") {
  const io::stored_tensors arrays = io::read_npz(data + "arrays.npz");
  const io::zip_file zip(data + "arrays.npz");
  CHECK(arrays.tensors.size() == 7 * 4 + 9);
  CHECK(arrays.others.empty());
  for (const auto& [name, t] : arrays.tensors) {
    CAPTURE(name);
    const std::size_t dot = name.find('.');
    const std::string type = name.substr(0, dot);
    CHECK(is_numbers(t, type == "shape" ? dtype::f32 : type_named(type), shape_named(name.substr(dot + 1))));
  }
  const temporary_file all("weft_arrays.npz");
  io::write_npz(all, arrays);
  CHECK(all.bytes() == io::input_file(data + "arrays.npz").text());
  const temporary_file one("weft_array.npy");
  io::write_npy(one, arrays.tensors.at("f64.5x7"));
  const std::vector<char> member = zip.read(*zip.find("f64.5x7.npy"));
  CHECK(one.bytes() == std::string(member.begin(), member.end()));
  CHECK(is_numbers(io::read_npy(one), dtype::f64, {2, {5, 7}}));
}

TEST_CASE(
    "npy: Fortran's order, the other order of bytes, versions 2 and 3; types that weft has not are named") {
  const io::stored_tensors arrays = io::read_npz(data + "variants.npz");
  CHECK(arrays.tensors.size() == 7 * 3 + 2);
  for (const auto& [name, t] : arrays.tensors) {
    CAPTURE(name);
    CHECK(is_numbers(t, type_named(name.substr(0, name.find('.'))), {3, {3, 5, 2}}));
  }
  const std::pair<const char*, const char*> others[] = {
      {"int8", "is of dtype |i1, which weft does not support"},
      {"uint16", "is of dtype <u2, which weft does not support"},
      {"uint64", "is of dtype <u8, which weft does not support"},
      {"complex", "is of dtype <c8, which weft does not support"},
      {"text", "is of dtype <U2, which weft does not support"},
      {"bytes", "is of dtype |S3, which weft does not support"},
      {"date", "is of dtype <M8[D], which weft does not support"},
      {"objects",
       "is of dtype |O, which weft does not support: objects are pickled, and weft does not execute pickles"},
      {"struct", "is of a structured dtype, which weft does not support"},
      {"bf16",
       "is of dtype |V2, which weft does not support: if it is bfloat16, save x.astype(numpy.float32)"},
      {"dims", "has 7 dims, but tensors of weft have at most 6"},
      {"readme.txt", "is not a .npy file"}};
  CHECK(arrays.others.size() == std::size(others));
  for (const auto& [name, why] : others) CHECK(arrays.others.at(name) == why);
  const auto t = zeros<float>(extents<3>{});
  CHECK_THROWS_WITH_AS(io::load(data + "variants.npz", {{"int8", t.state()}}),
                       (data + "variants.npz: tensor int8 is of dtype |i1, which weft does not support")
                           .insert(0, "weft: ")
                           .c_str(),
                       io_error);
  CHECK_THROWS_WITH_AS(io::write_npz("/tmp/weft_none.npz", arrays),
                       doctest::Contains("weft: npz: tensor bf16 is of dtype |V2"), value_error);
}

TEST_CASE("npz: compressed arrays, in blocks of every kind") {
  const io::stored_tensors arrays = io::read_npz(data + "compressed.npz");
  const std::vector<char> noise = io::read_npz(data + "noise.npz").tensors.at("noise").bytes;
  CHECK(is_numbers(arrays.tensors.at("long"), dtype::i32, {2, {70, 90}}));
  CHECK(is_numbers(arrays.tensors.at("few"), dtype::u8, {1, {3}}));
  CHECK(arrays.tensors.at("zeros").bytes == std::vector<char>(360000));
  CHECK(arrays.tensors.at("noise").bytes == std::vector<char>(noise.begin(), noise.begin() + 600));
  std::vector<char> far = noise;
  far.resize(31500);
  far.insert(far.end(), noise.begin(), noise.end());
  CHECK(arrays.tensors.at("far").bytes == far);
}

TEST_CASE("npy: headers are read as Python would, and malformed ones are clear errors") {
  for (const char* header :
       {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n",
        "{'shape':(2,3),'descr':'<f4','fortran_order':False}",
        "{ \"fortran_order\" : True , 'shape' : ( 2 , 3 , ) , \"descr\" : \"=f4\" , }  \n \n",
        "{'descr': 'f4', 'fortran_order': False, 'shape': (2L, 3L)}"}) {
    CAPTURE(header);
    const io::stored_tensor t = io::parse_npy(npy(header, 24), "test");
    CHECK(t.type == dtype::f32);
    CHECK(t.extents == shape{2, {2, 3}});
  }
  const auto with = [](const std::string& order, const std::string& shape) {
    return npy("{'descr': '<f4', 'fortran_order': " + order + ", 'shape': " + shape + "}\n", 24);
  };
  CHECK(io::parse_npy(with("False", "(6,)"), "test").extents == shape{1, {6}});
  const std::string empty = "{'descr': '<f4', 'fortran_order': True, 'shape': (4611686018427387904, 2, 0)}";
  CHECK(io::parse_npy(npy(empty, 0), "test").bytes.empty());
  std::string version = with("False", "(6,)");
  version[6] = 4;
  std::string large("\x93NUMPY\2\0\xff\xff\xff\xff", 12);
  std::string beyond = with("False", "(6,)");
  beyond[9] = 1;
  const std::pair<std::string, std::string> bad[] = {
      {"", "does not start with"},
      {"\x93NUMPZ\1\0aaaaaaaaa", "does not start with"},
      {std::string("\x93NUMPY\1\0", 8), "ends early"},
      {version, "version 4"},
      {large, "too large"},
      {beyond, "the header reaches beyond the end of the file"},
      {npy("{", 0) + std::string(1, '\0'), "malformed header"},
      {npy("[]  ", 0), "expected '{'"},
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", 23),
       "has 23 bytes after the header, but its shape needs 24"},
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", 25), "has 25 bytes after the header"},
      {npy("{'descr': '<f4', 'fortran_order': False}", 24), "needs descr, fortran_order and shape"},
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'x': 1}", 24), "unknown key x"},
      {npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", 24),
       "descr occurs twice"},
      {npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} or x", 24), "text after"},
      {npy("{'descr': '<f4' 'fortran_order': False, 'shape': (6,)}", 24), "expected '}'"},
      {npy("{'descr': '<f4\\'', 'fortran_order': False, 'shape': (6,)}", 24), "a string"},
      {npy("{'descr': f4, 'fortran_order': False, 'shape': (6,)}", 24), "expected '''"},
      {with("0", "(6,)"), "neither True nor False"},
      {with("false", "(6,)"), "neither True nor False"},
      {with("False", "(6)"), "needs a comma"},
      {with("False", "6"), "expected '('"},
      {with("False", "(,)"), "unsigned integer"},
      {with("False", "(2 3)"), "expected ')'"},
      {with("False", "(-6,)"), "unsigned integer"},
      {with("False", "(6.0,)"), "expected ')'"},
      {with("False", "(9223372036854775808,)"), "unsigned integer of 63 bits"},
      {with("False", "(4294967296, 4294967296, 2)"), "overflows"},
      {with("False", "(9223372036854775807,)"), "overflows"},
      {npy("{'descr': [('a', '<f4'", 0), "unsigned integer"},
      {npy("{'descr': '|i1', 'fortran_order': False, 'shape': (24,)}", 24),
       "is of dtype |i1, which weft does not support"}};
  for (const auto& [bytes, words] : bad) {
    CAPTURE(words);
    try {
      io::parse_npy(bytes, "test");
      FAIL_CHECK("no error");
    } catch (const io_error& e) {
      CHECK(std::string(e.what()).starts_with("weft: npy test: "));
      CHECK(std::string(e.what()).find(words) != std::string::npos);
    }
  }
}

TEST_CASE("npy, npz: of every beginning and every change of a file, the array is read or there is an error") {
  const std::string header = "{'descr': '>i4', 'fortran_order': True, 'shape': (2, 3)}\n";
  for_each_damage(npy(header, 24), [](const std::string& bytes) {
    const io::stored_tensor t = io::parse_npy(bytes, "damaged");
    CHECK(t.bytes.size() == bytes_of(t.extents, t.type));
  });
  const memory_file file;
  for (const bool compressed : {false, true}) {
    const io::zip_file zip(data + "variants.npz");
    const io::zip_member& first = *zip.find("f64.fortran.npy");
    const std::vector<char> content = zip.read(first);
    std::string whole = archive({{first.name, {content.begin(), content.end()}}});
    if (compressed) {  // the first member of the file, and a directory with only this member
      whole = io::input_file(zip.path()).text().substr(0, 30 + first.name.size() + first.bytes);
      whole += io::detail::zip_directory({first}, whole.size());
      whole.replace(whole.rfind("PK\1\2") + 10, 1, 1, '\x8');
    }
    file.write(whole);
    CHECK(is_numbers(io::read_npz(file.path()).tensors.at("f64.fortran"), dtype::f64, {3, {3, 5, 2}}));
    for_each_damage(whole, [&](const std::string& bytes) {
      file.write(bytes);
      const auto all = io::read_npz(file.path());
      CHECK(all.tensors.size() + all.others.size() <= 1);
      for (const auto& [name, t] : all.tensors) CHECK(is_numbers(t, dtype::f64, {3, {3, 5, 2}}));
    });
  }
}

TEST_CASE("save, load: a tensor in a .npy file") {
  const temporary_file file("weft_one.npy");
  const auto x = from(extents<dyn, 3>{2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6.0625f});
  io::save(file, x);
  CHECK(io::format_of(file) == io::file_format::npy);
  const auto y = zeros<float>(extents<2, 3>{});
  io::load(file, y);
  CHECK(y.to_vector() == x.to_vector());
  const auto z = io::load<float, extents<dyn, 3>>(file);
  CHECK(z.extents() == shape{2, {2, 3}});
  CHECK(z.to_vector() == x.to_vector());
  CHECK(io::load<double, extents<dyn, dyn>>(file, {.convert = true}).to_vector()[5] == 6.0625);
  io::save(file, x, {.as = dtype::f16});
  CHECK(io::read_npy(file).type == dtype::f16);
  CHECK(io::read_tensors(file).tensors.at("").extents == shape{2, {2, 3}});

  CHECK_THROWS_WITH_AS(
      io::load(file, y),
      doctest::Contains("tensor is f16 [2, 3], but the model expects f32 [2, 3]: load(path, "), io_error);
  CHECK_THROWS_WITH_AS((io::load<float16, extents<dyn, 4>>(file)),
                       doctest::Contains("tensor is f16 [2, 3], but the model expects f16 [?, 4]"), io_error);
  CHECK_THROWS_WITH_AS((io::load<std::int32_t, extents<dyn, 3>>(file, {.convert = true})),
                       doctest::Contains("tensor is f16 [2, 3], but the model expects i32 [?, 3]"), io_error);
  CHECK_THROWS_WITH_AS(io::load(file, {{"x", y.state()}}),
                       doctest::Contains("holds one unnamed tensor: write load(path, tensor)"), io_error);
  CHECK_THROWS_WITH_AS(io::save(file, {{"x", y.state()}}),
                       doctest::Contains("a .npy file holds one unnamed tensor"), value_error);
  CHECK_THROWS_WITH_AS(io::save("x.npz", x),
                       doctest::Contains("an unnamed tensor can be saved only to a .npy file"), value_error);
  const auto narrow = zeros<bfloat16>(extents<2>{});
  CHECK_THROWS_WITH_AS(io::save(file, narrow),
                       doctest::Contains("the tensor is bf16, which NumPy does not support"), value_error);
  CHECK(io::read_npy(file).type == dtype::f16);  // the file that was there
  io::save(file, narrow, {.as = dtype::f32});
  CHECK(io::read_npy(file).extents == shape{1, {2}});
  const auto flags = zeros<bool>(extents<24>{});
  file.write(npy("{'descr': '|b1', 'fortran_order': False, 'shape': (24,)}", 24).replace(80, 1, "\2"));
  CHECK_THROWS_WITH_AS(io::load(file, flags),
                       doctest::Contains("tensor is bool, but has bytes other than 0 and 1"), io_error);
}

TEST_CASE("save, load: a model in a .npz file") {
  const temporary_file file("weft_model.npz");
  linear<3, 2> a, b;
  linear<3, 4> other;
  initialize(a, 1);
  io::save(file, state_dict(a));
  CHECK(io::format_of(file) == io::file_format::npz);
  io::load(file, state_dict(b));
  CHECK(b.weight.to_vector() == a.weight.to_vector());
  CHECK(b.bias.to_vector() == a.bias.to_vector());
  CHECK_THROWS_WITH_AS(io::load(file, state_dict(other)),
                       doctest::Contains("tensor weight is f32 [2, 3], but the model expects f32 [4, 3]"),
                       io_error);
  CHECK_THROWS_WITH_AS(io::load(file, b.weight),
                       doctest::Contains("holds named tensors: write load(path, {{"), io_error);
  io::save(file, {{"net.weight", a.weight.state()}, {"net.bias", a.bias.state()}}, {.as = dtype::f64});
  CHECK_THROWS_WITH_AS(io::load(file, state_dict(b), {.prefix = "net."}),
                       doctest::Contains("tensor net.weight is f64"), io_error);
  b = linear<3, 2>{};
  io::load(file, state_dict(b), {.convert = true, .prefix = "net."});
  CHECK(b.weight.to_vector() == a.weight.to_vector());
  CHECK_THROWS_WITH_AS(io::load(file, state_dict(b)), doctest::Contains("tensor weight is missing"),
                       io_error);

  const std::string before = file.bytes();
  const auto narrow = zeros<bfloat16>(extents<2>{});
  CHECK_THROWS_WITH_AS(io::save(file, {{"w", narrow.state()}}),
                       doctest::Contains("tensor w is bf16, which NumPy"), value_error);
  CHECK_THROWS_WITH_AS(io::save(file, {{"w\xff", a.weight.state()}}),
                       doctest::Contains("is too long or not UTF-8"), value_error);
  CHECK_THROWS_AS(io::save(file, {{std::string("w\0w", 3), a.weight.state()}}), value_error);
  CHECK_THROWS_AS(io::save(file, {{std::string(65532, 'w'), a.weight.state()}}), value_error);
  CHECK_THROWS_WITH_AS(io::save("model.pt", state_dict(a)),
                       doctest::Contains("model.pt: .pt files can be read but not written"), value_error);
  CHECK_THROWS_AS(io::save("model.pth", state_dict(a)), value_error);
  CHECK(file.bytes() == before);
  io::save(file, {{"gr\xc3\xb6\xc3\x9f/0", a.weight.state()}});
  CHECK(io::read_npz(file).tensors.contains("gr\xc3\xb6\xc3\x9f/0"));
  CHECK(file.bytes()[7] == 8);  // the name is UTF-8
  io::save(file, {});
  CHECK(io::format_of(file) == io::file_format::npz);
  CHECK(io::read_npz(file).tensors.empty());
}
