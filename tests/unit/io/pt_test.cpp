// SPDX-License-Identifier: MIT
// Files that PyTorch wrote (tests/agree/make_files.py), and pickles that it would not write.
#include <doctest/doctest.h>

#include <weft/io/pt.hpp>
#include <weft/io/tensor_files.hpp>
#include <weft/weft.hpp>

#include "../../memory_file.hpp"
#include "../../numbers.hpp"

using namespace weft;
using namespace std::string_literals;

namespace {

const std::string data = WEFT_TEST_DATA "/";

// Pieces of a pickle.
std::string number(std::uint64_t n, int bytes) {
  std::string s;
  for (int i = 0; i < bytes; ++i) s += static_cast<char>(n >> 8 * i);
  return s;
}
std::string text(const std::string& s) { return "X" + number(s.size(), 4) + s; }
std::string integer(std::uint64_t n) { return "\x8a\x8" + number(n, 8); }
std::string tuple(std::initializer_list<std::string> values) {
  std::string s = "(";
  for (const std::string& v : values) s += v;
  return s + "t";
}
std::string dict(std::initializer_list<std::string> values) {
  std::string s = "}(";
  for (const std::string& v : values) s += v;
  return s + "u";
}
std::string name(const std::string& module, const std::string& what) {
  return "c" + module + "\n" + what + "\n";
}
std::string storage(std::uint64_t count, const std::string& type = "FloatStorage",
                    const std::string& key = "0") {
  return tuple({text("storage"), name("torch", type), text(key), text("cpu"), integer(count)}) + "Q";
}
std::string tensor_in(const std::string& storage, const std::string& offset, const std::string& extents,
                      const std::string& strides) {
  return name("torch._utils", "_rebuild_tensor_v2") +
         tuple({storage, offset, extents, strides, "\x89", name("collections", "OrderedDict") + ")R"}) + "R";
}
const std::string six = tensor_in(storage(6), "K\0"s, tuple({"K\2", "K\3"}), tuple({"K\3", "K\1"}));

/// Writes a torch.save file with this value and a storage of six numbers, and reads it.
io::stored_tensors read(const std::string& value, const std::string& before = "\x80\2",
                        const std::string& after = ".") {
  const memory_file file;
  const io::stored_tensor elements = numbers(dtype::f32, {1, {6}});
  file.write(archive({{"a/data.pkl", before + value + after},
                      {"a/data/0", {elements.bytes.begin(), elements.bytes.end()}}}));
  return io::read_pt(file.path());
}

void check_refused(const std::string& value, const std::string& words, const std::string& before = "\x80\2",
                   const std::string& after = ".") {
  CAPTURE(words);
  try {
    read(value, before, after);
    FAIL_CHECK("no error");
  } catch (const io_error& e) {
    const std::string what = e.what();
    CAPTURE(what);
    CHECK(what.starts_with("weft: /proc/self/fd/"));
    CHECK(what.find(words) != what.npos);
  }
}

struct net {
  linear<3, 5> hidden;
  auto operator()(expression auto x) const { return hidden(x); }
};

}  // namespace

TEST_CASE("pt: a state_dict of PyTorch is loaded into a model") {
  const std::string file = data + "module.pt";
  CHECK(io::format_of(file) == io::file_format::pt);
  net model;
  io::load(file, state_dict(model));
  CHECK(is_numbers(io::stored(*model.hidden.weight.state()), dtype::f32, {2, {5, 3}}));
  CHECK(is_numbers(io::stored(*model.hidden.bias.state()), dtype::f32, {1, {5}}));
  const io::stored_tensors all = io::read_pt(file);
  CHECK(all.tensors.size() == 7);
  CHECK(all.tensors.at("norm.num_batches_tracked").extents == shape{});
  CHECK(all.tensors.at("norm.num_batches_tracked").bytes == std::vector<char>(8));
  linear<3, 4> other;
  CHECK_THROWS_WITH_AS(
      io::load(file, state_dict(other), {.prefix = "hidden."}),
      doctest::Contains("module.pt: tensor hidden.weight is f32 [5, 3], but the model expects f32 [4, 3]"),
      io_error);
  CHECK_THROWS_WITH_AS(
      io::load(file, state_dict(other)),
      doctest::Contains("module.pt: tensor weight is missing, norm.weight is there: load(path, tensors, "
                        "{.prefix = \"norm.\"})"),
      io_error);
  CHECK_THROWS_WITH_AS(io::load(file, state_dict(model), {.prefix = "model."}),
                       doctest::Contains("tensor model.hidden.weight is missing, hidden.weight is there: "
                                         "load(path, tensors, {.prefix = \"\"})"),
                       io_error);
  CHECK_THROWS_WITH_AS(io::load(file, {{"w", other.weight.state()}}),
                       doctest::Contains("tensor w is missing, the file has hidden.bias, hidden.weight, "
                                         "norm.bias and 4 others"),
                       io_error);
  CHECK_THROWS_WITH_AS(
      io::load(file, other.weight),
      doctest::Contains("holds named tensors: write load(path, {{\"hidden.bias\", x.state()}})"), io_error);
  CHECK_THROWS_WITH_AS(io::load(data + "tensor.pt", state_dict(other)),
                       doctest::Contains("holds one unnamed tensor: write load(path, tensor)"), io_error);
  const auto x = io::load<float, extents<2, dyn>>(data + "tensor.pt");
  CHECK(is_numbers(io::stored(*x.state()), dtype::f32, {2, {2, 3}}));
}

TEST_CASE("pt: a checkpoint, with views of every kind, types and values that are no tensors") {
  const io::stored_tensors file = io::read_pt(data + "checkpoint.pt");
  const auto check = [&](const std::string& tensor, dtype type, const shape& extents) {
    CAPTURE(tensor);
    REQUIRE(file.tensors.contains(tensor));
    CHECK(is_numbers(file.tensors.at(tensor), type, extents));
  };
  for (int i = 0; i < 8; ++i) {
    const auto type = static_cast<dtype>(i);
    check(std::string("types.") + name_of(type), type, {3, {3, 5, 2}});
    check(std::string("transposed.") + name_of(type), type, {3, {3, 5, 2}});
  }
  const shape shapes[] = {{},
                          {1, {0}},
                          {1, {1}},
                          {1, {3}},
                          {3, {2, 0, 3}},
                          {2, {5, 7}},
                          {3, {1, 1, 1}},
                          {4, {2, 3, 5, 7}},
                          {6, {1, 2, 1, 3, 1, 2}}};
  for (std::size_t i = 0; i < std::size(shapes); ++i)
    check("shapes." + std::to_string(i), dtype::f32, shapes[i]);
  check("parameter", dtype::f32, {3, {3, 5, 2}});
  check("tied.0", dtype::f32, {1, {4}});
  check("tied.1", dtype::f32, {1, {4}});
  check("7.-3", dtype::i32, {1, {3}});

  // The elements of a tensor of 40, by position.
  const io::stored_tensor base = numbers(dtype::f32, {1, {40}});
  const auto check_positions = [&](const char* tensor, const shape& extents,
                                   const std::vector<std::size_t>& at) {
    CAPTURE(tensor);
    const io::stored_tensor& t = file.tensors.at(tensor);
    CHECK(t.extents == extents);
    REQUIRE(t.bytes.size() == 4 * at.size());
    for (std::size_t i = 0; i < at.size(); ++i)
      CHECK(std::memcmp(t.bytes.data() + 4 * i, base.bytes.data() + 4 * at[i], 4) == 0);
  };
  std::vector<std::size_t> offset(30);
  for (std::size_t i = 0; i < 30; ++i) offset[i] = i + 5;
  check_positions("offset", {3, {3, 5, 2}}, offset);
  check_positions("steps", {1, {13}}, {1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 37});
  check_positions("column", {1, {8}}, {2, 7, 12, 17, 22, 27, 32, 37});
  check_positions("diagonal", {1, {3}}, {4, 10, 16});
  check_positions("overlapping", {2, {2, 4}}, {0, 2, 4, 6, 1, 3, 5, 7});

  const std::pair<const char*, const char*> others[] = {
      {"int8", "is of dtype int8, which weft does not support"},
      {"uint16", "is of dtype uint16, which weft does not support"},
      {"complex", "is of dtype complex64, which weft does not support"},
      {"float8", "is of dtype float8_e4m3fn, which weft does not support"},
      {"dims", "has 7 dims, but tensors of weft have at most 6"},
      {"repeated", "has more elements than are stored: for an expanded tensor, save x.clone()"}};
  CHECK(file.others.size() == std::size(others));
  for (const auto& [tensor, why] : others) CHECK(file.others.at(tensor) == why);

  const std::pair<const char*, const char*> scalars[] = {{"epoch", "3"},
                                                         {"lr", "0.1"},
                                                         {"on", "true"},
                                                         {"title", "gr\xc3\xbcn"},
                                                         {"large", "1099511627776"},
                                                         {"negative", "-5"},
                                                         {"short", "300"}};
  for (const auto& [scalar, value] : scalars) CHECK(file.metadata.at(scalar) == value);
  for (const char* none : {"nothing", "huge", "size", "list", "list.0", "device", "dtype", "True", "None"}) {
    CAPTURE(none);
    CHECK(!file.metadata.contains(none));
    CHECK(!file.tensors.contains(none));
  }
  CHECK(file.tensors.at("optimizer.state.0.exp_avg").extents == shape{2, {5, 3}});
  CHECK(file.tensors.contains("optimizer.state.0.step"));
  linear<3, 5> part;
  const auto moment = zeros<float>(extents<5, 3>{});
  io::load(data + "checkpoint.pt", {{"exp_avg", moment.state()}}, {.prefix = "optimizer.state.0."});
  CHECK(io::stored(*moment.state()).bytes == file.tensors.at("optimizer.state.0.exp_avg").bytes);
  CHECK_THROWS_WITH_AS(
      io::load(data + "checkpoint.pt", {{"int8", moment.state()}}),
      doctest::Contains("checkpoint.pt: tensor int8 is of dtype int8, which weft does not support"),
      io_error);
  CHECK(io::read_pt(data + "checkpoint.pt", [](const std::string& n) {
          return n == "column";
        }).tensors.size() == 1);
}

TEST_CASE("pt: tensors whose elements PyTorch computes from those stored are left out") {
  const io::stored_tensors file = io::read_pt(data + "bits.pt");
  CHECK(file.others.at("negative") == "has PyTorch's bit neg set: save x.resolve_neg()");
  CHECK(file.others.at("conjugate") == "is of dtype complex64, which weft does not support");
  const float negative[] = {1, -0.75f, -2.5f};
  CHECK(file.tensors.size() == 1);
  CHECK(std::memcmp(file.tensors.at("resolved").bytes.data(), negative, sizeof negative) == 0);
  const auto with_bits = [](const std::string& bits) {
    return name("torch._utils", "_rebuild_tensor_v2") +
           tuple({storage(6), "K\0"s, tuple({"K\2"}), tuple({"K\1"}), "\x89", "}", bits}) + "R";
  };
  CHECK(read(with_bits("N")).tensors.size() == 1);
  CHECK(read(with_bits(dict({text("conj"), "\x89", text("neg"), "\x89"}))).tensors.size() == 1);
  CHECK(read(with_bits(dict({text("conj"), "\x89", text("neg"), "\x88"}))).others.size() == 1);
  check_refused(with_bits("K\1"), "is malformed");
  check_refused(with_bits(dict({text("neg"), "K\1"})), "is malformed");
  check_refused(with_bits(dict({"K\1", "\x88"})), "is malformed");
}

TEST_CASE("pt: files of an index") {
  const temporary_file folder("weft_pt_index");
  std::filesystem::create_directory(std::string(folder));
  std::filesystem::copy(data + "module.pt", folder + "/pytorch_model-00001-of-00002.bin");
  io::save(folder + "/two.npz", {{"x", zeros<float>(extents<2>{}).state()}});
  const std::string index = folder + "/pytorch_model.bin.index.json";
  std::ofstream(index) << R"({"weight_map": {"hidden.weight": "pytorch_model-00001-of-00002.bin",
                              "hidden.bias": "pytorch_model-00001-of-00002.bin", "x": "two.npz"}})";
  net model;
  io::load(index, state_dict(model));
  CHECK(is_numbers(io::stored(*model.hidden.weight.state()), dtype::f32, {2, {5, 3}}));
  CHECK(io::read_tensors(index).tensors.size() == 3);
}

TEST_CASE("pt: files of machines of the other order of bytes, and without CRCs") {
  const io::stored_tensors big = io::read_pt(data + "big_endian.pt");
  CHECK(big.tensors.size() == 8);
  for (const auto& [type, t] : big.tensors) {
    CAPTURE(type);
    CHECK(is_numbers(t, type_named(type), {2, {2, 3}}));
  }
  CHECK(is_numbers(io::read_pt(data + "unchecked.pt").tensors.at("x"), dtype::f32, {2, {2, 3}}));
}

TEST_CASE("pt: files of other kinds are refused with what to do") {
  const std::pair<const char*, const char*> files[] = {
      {"legacy.pt",
       "legacy.pt: was written by torch.save before PyTorch 1.6: load it in PyTorch and save it again"},
      {"script.pt", "script.pt: is a TorchScript archive: torch.save(module.state_dict(), file)"},
      {"protocol4.pt", "protocol4.pt: data.pkl: pickle at byte 2: uses protocol 4, but weft reads only 2"},
      {"object.pt", "names numpy"},
      {"inflated.pt", "inflated.pt: data.pkl has 100005 bytes when inflated, but the file has"},
      {"arrays.npz", "arrays.npz: has no data.pkl: it was not written by torch.save"},
      {"silu.safetensors", "silu.safetensors: zip: no end of the directory"}};
  for (const auto& [file, words] : files) {
    CAPTURE(file);
    CHECK_THROWS_WITH_AS(io::read_pt(data + file), doctest::Contains(words), io_error);
    if (std::string(file).ends_with(".pt")) CHECK(io::format_of(data + file) == io::file_format::pt);
  }
}

TEST_CASE("pt: pickles are not executed, and what torch.save does not write is a clear error") {
  CHECK(is_numbers(read(six).tensors.at(""), dtype::f32, {2, {2, 3}}));
  const std::pair<std::string, const char*> numbers[] = {{"\x8a\0"s, "0"},
                                                         {"\x8a\1\xff", "-1"},
                                                         {"\x8a\2\xff\0"s, "255"},
                                                         {"\x8a\1\x80", "-128"},
                                                         {integer(~0ull), "-1"},
                                                         {integer(1ull << 63), "-9223372036854775808"},
                                                         {"J\0\0\0\x80"s, "-2147483648"},
                                                         {"M\xff\xff", "65535"},
                                                         {"G\x7f\xf0\0\0\0\0\0\0"s, "inf"}};
  for (const auto& [value, shown] : numbers) CHECK(read(dict({text("n"), value})).metadata.at("n") == shown);
  check_refused(name("os", "system") + tuple({text("true")}) + "R",
                "names os.system, which weft does not read");
  check_refused(name("builtins", "eval") + tuple({text("1")}) + "R", "names builtins.eval");
  check_refused(name("torch", "load") + tuple({text("x")}) + "R", "names torch.load");
  check_refused(name("torch.FloatStorage", "x"), "names torch.FloatStorage.x");
  check_refused(name("torch", ""), "names torch.");
  check_refused(name("torch", "float32") + ")R", "calls something that is not a function");
  check_refused(name("torch", "FloatStorage") + ")R", "calls something that is not a function");
  check_refused(name("collections", "OrderedDict") + tuple({"N"}) + "R",
                "calls something that is not a function");
  check_refused("N)R", "calls something that is not a function");
  check_refused("\x81", "instruction 129");
  check_refused("i", "instruction 105");
  check_refused("", "takes a value that is not there");
  check_refused("(", "takes a value that is not there");
  check_refused("NN", "continues after the value");
  check_refused("N", "continues after the value", "\x80\2", "..");
  check_refused("N", "ends early", "\x80\2", "");
  check_refused("N", "does not start with its protocol", "");
  check_refused("N", "uses protocol 5", "\x80\5");
  check_refused("\x85", "takes a value that is not there");
  check_refused("(\x85", "takes a value that is not there");
  check_refused("t", "a mark that is not there");
  check_refused("(Ns", "takes a value that is not there");
  check_refused("NNs", "takes a value that is not there");
  check_refused("NNNs", "changes a value of another kind");
  check_refused("]NNs", "changes a value of another kind");
  check_refused("}(Nu", "a key without a value");
  check_refused("Na", "takes a value that is not there");
  check_refused("]}b", "changes a value of another kind");
  check_refused("h\1", "recalls a value");
  check_refused("Nq\1h\0"s, "recalls a value");
  check_refused("Nr\xff\xff\xff\x7f", "stores more values");
  check_refused("q\1", "takes a value that is not there");
  check_refused("NQ", "a storage is not described");
  check_refused("X\xff\xff\xff\xff", "ends early");
  check_refused(text("\xff"), "not UTF-8");
  check_refused("ctorch", "ends early");
  check_refused("\x8a\xff", "ends early");
  check_refused(std::string(40, ']') + std::string(39, 'a'), "nested too deeply");
  check_refused("}q\1X\1\0\0\0ah\1s"s, "");  // a dict in itself
  std::string laughs = "]q\0"s;              // each list contains the previous one twice
  for (int i = 0; i < 30; ++i)
    laughs += "](" + std::string("h") + static_cast<char>(i) + "h" + static_cast<char>(i) + "eq" +
              static_cast<char>(i + 1);
  check_refused("(" + laughs + "t", "refers to its values too often");
  std::string lists = "](](" + std::string(2000, 'N') + "eq\1";  // a list of 2000 values 2000 times
  for (int i = 0; i < 2000; ++i) lists += "h\1";
  check_refused(lists + "e", "refers to its values too often");
}

TEST_CASE("pt: what a pickle says about elements is checked") {
  const std::string offset = "K\0"s, extents = tuple({"K\2", "K\3"}), strides = tuple({"K\3", "K\1"});
  const auto in = [&](const std::string& s) { return tensor_in(s, offset, extents, strides); };
  const auto at = [&](const std::string& o, const std::string& e, const std::string& s) {
    return dict({text("w"), tensor_in(storage(6), o, e, s)});
  };
  const std::uint64_t large = std::uint64_t{1} << 62;
  CHECK(read(at("K\5", tuple({"K\1"}), tuple({integer(large)}))).tensors.at("w").bytes.size() == 4);
  CHECK(
      read(at(integer(large), tuple({"K\0"s, integer(large), integer(large)}), tuple({"K\1", "K\1", "K\1"})))
          .tensors.at("w")
          .bytes.empty());
  CHECK(read(at("K\5", tuple({"K\2"}), tuple({"K\0"s}))).tensors.at("w").bytes.size() == 8);
  check_refused(at("K\1", extents, strides), "tensor w: reaches beyond its storage");
  check_refused(at("K\6", tuple({}), tuple({})), "reaches beyond its storage");
  check_refused(at(offset, tuple({"K\7"}), tuple({"K\1"})), "reaches beyond its storage");
  check_refused(at(offset, tuple({"K\2"}), tuple({"K\6"})), "reaches beyond its storage");
  check_refused(at(offset, tuple({"K\5"}), tuple({integer(large)})), "reaches beyond its storage");
  check_refused(at(offset, tuple({"K\3", "K\3", "K\3"}),
                   tuple({integer(large - 1), integer(large - 1), integer(large - 1)})),
                "reaches beyond its storage");
  check_refused(at(integer(large * 2 - 1), tuple({"K\2"}), tuple({"K\1"})), "reaches beyond its storage");
  check_refused(at(offset, tuple({integer(large), integer(large)}), tuple({"K\0"s, "K\0"s})),
                "reaches beyond its storage");
  check_refused(at("J\xff\xff\xff\xff", tuple({"K\2"}), tuple({"K\1"})), "a size is not an unsigned integer");
  check_refused(at(offset, tuple({"J\xff\xff\xff\xff"}), tuple({"K\1"})),
                "a size is not an unsigned integer");
  check_refused(at(offset, tuple({"K\2"}), tuple({"J\xff\xff\xff\xff"})),
                "a size is not an unsigned integer");
  check_refused(at(offset, tuple({"N"}), tuple({"K\1"})), "a size is not an unsigned integer");
  check_refused(at(offset, tuple({"K\2"}), tuple({})), "is malformed");
  check_refused(at(offset, "K\2", tuple({"K\1"})), "is malformed");
  check_refused(in("N"), "is malformed");
  check_refused(in(tuple({text("storage")}) + "Q"), "its storage is malformed");
  check_refused(in(storage(5)), "its storage 0 is missing or has the wrong size");
  check_refused(in(storage(6, "DoubleStorage")), "its storage 0 is missing or has the wrong size");
  check_refused(in(storage(6, "FloatStorage", "1")), "its storage 1 is missing or has the wrong size");
  check_refused(in(storage(6, "FloatStorage", "../data.pkl")), "is missing or has the wrong size");
  check_refused(in(storage(6, "Size")), "its dtype is malformed");
  check_refused(name("torch._utils", "_rebuild_tensor_v2") + ")R", "is malformed");
  check_refused(name("torch._utils", "_rebuild_parameter") + tuple({"N", "\x88", "N"}) + "R", "is malformed");
  const std::string parameter = name("torch._utils", "_rebuild_parameter") + tuple({six, "\x88", "N"}) + "R";
  CHECK(read(parameter).tensors.size() == 1);
  check_refused(name("torch._utils", "_rebuild_parameter") + tuple({parameter, "\x88", "N"}) + "R",
                "is malformed");
  // The form for types without their own storage class counts bytes, and ends with the type.
  const auto untyped = [&](std::uint64_t bytes) {
    return name("torch._utils", "_rebuild_tensor_v3") +
           tuple({tuple({text("storage"), name("torch.storage", "UntypedStorage"), text("0"), text("cpu"),
                         integer(bytes)}) +
                      "Q",
                  offset, extents, strides, "\x89", "}", name("torch", "float32")}) +
           "R";
  };
  CHECK(is_numbers(read(untyped(24)).tensors.at(""), dtype::f32, {2, {2, 3}}));
  check_refused(untyped(6), "its storage 0 is missing or has the wrong size");
  check_refused(dict({text("a"), six, text("a"), six}), "tensor a: occurs twice");
  check_refused(dict({text("a.b"), six, text("a"), dict({text("b"), six})}), "tensor a.b: occurs twice");
  check_refused(dict({text("a"), six, text("a"), in(storage(1, "CharStorage"))}), "tensor a: occurs twice");
  check_refused(dict({text("a"), six, text("b"), in(storage(24, "ByteStorage"))}),
                "its storage has elements of two sizes");
  CHECK(read(dict({text("a"), six, text("b"), in(storage(6, "IntStorage"))})).tensors.size() == 2);

  {
    const memory_file file;
    file.write(archive({{"a/data.pkl", "\x80\2" + in(storage(24, "CharStorage")) + "."},
                        {"a/data/0", std::string(24, '\1')}}));
    const auto t = zeros<float>(weft::extents<2, 3>{});
    CHECK_THROWS_WITH_AS(io::load(file.path(), t),
                         doctest::Contains(": the tensor is of dtype int8, which weft does not support"),
                         io_error);
    file.write(archive({{"a/data.pkl", "\x80\2}."}}));
    CHECK_THROWS_WITH_AS(io::load(file.path(), t), doctest::Contains("has no tensor that can be read"),
                         io_error);
  }
  // Many names for one storage: at most 64 times the bytes of the file.
  const memory_file file;
  std::string pickle =
      "\x80\2](" + tensor_in(storage(20000), offset, tuple({integer(20000)}), tuple({"K\1"})) + "q\1";
  for (int i = 0; i < 200; ++i) pickle += "h\1";
  pickle += "e.";
  const std::string elements(80000, '\0');
  file.write(archive({{"a/data.pkl", pickle}, {"a/data/0", elements}}));
  CHECK_THROWS_WITH_AS(io::read_pt(file.path()),
                       doctest::Contains("its tensors have more than 64 times as many bytes"), io_error);
  CHECK(
      io::read_pt(file.path(), [](const std::string& n) { return n == "7"; }).tensors.at("7").bytes.size() ==
      80000);
  // A long text under many names.
  std::string texts = "\x80\2}(" + text("0") + text(std::string(10000, 'x')) + "q\1";
  for (int i = 1; i < 1000; ++i) texts += text(std::to_string(i)) + "h\1";
  file.write(archive({{"a/data.pkl", texts + "u."}}));
  CHECK_THROWS_WITH_AS(io::read_pt(file.path()), doctest::Contains("refers to its values too often"),
                       io_error);
}

TEST_CASE("pt: of every beginning and every change of a file, the tensors are read or there is an error") {
  const memory_file file;
  const std::string whole = io::input_file(data + "tensor.pt").text();
  for_each_damage(whole, [&](const std::string& bytes) {
    file.write(bytes);
    for (const auto& [tensor, t] : io::read_tensors(file.path()).tensors)
      CHECK(is_numbers(t, dtype::f32, {2, {2, 3}}));
  });
  // Changes that CRCs would detect are made to the pickle only.
  const std::string value = dict({text("w"), six, text("n"), "K\3", text("l"), "](" + six + "e"});
  for_each_damage("\x80\2" + value + ".", [&](const std::string& pickle) {
    for (const auto& [tensor, t] : read(pickle, "", "").tensors)
      CHECK(t.bytes.size() == bytes_of(t.extents, t.type));
  });
}
