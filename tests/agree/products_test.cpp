// SPDX-License-Identifier: MIT
// einsum and cumprod, with their derivatives, agree with PyTorch: extents of 0 and 1, zero elements, every
// type.
#include "cases.hpp"

using namespace weft;
using namespace weft::test;

namespace {

const io::stored_tensors& cases() {
  static const io::stored_tensors all = file("products");
  return all;
}

template <index_t Dim>
void running() {
  for (const char* zeros : {"apart_", "zeros_"})
    for_each_case(cases(), "cumprod_" + (zeros + std::to_string(Dim)), [&](const stored_case& c) {
      auto x = c.variable<float, order3>("x");
      c.agrees([&] { return cumprod<Dim>(x); }, 1e-5, 0.1, "x", x);
    });
}
template <class T>
void running_of(const std::string& type, double tolerance = 0) {
  for_each_case(cases(), "cumprod_" + type, [&](const stored_case& c) {
    if constexpr (is_floating(dtype_of<T>)) {
      auto x = c.variable<T, order3>("x");
      c.agrees([&] { return cumprod<1>(x); }, tolerance, 1, "x", x);
    } else {
      c.same(*eval(cumprod<1>(c.stored<T, order3>("x"))).state(), "y", 0, 0);
    }
  });
}

template <class A, equation E>
void equation_of_one(int number) {
  for_each_case(cases(), "einsum_" + std::to_string(number), [&](const stored_case& c) {
    auto a = c.variable<float, A>("a");
    c.agrees([&] { return einsum<E>(a); }, 1e-5, 1, "a", a);
  });
}
template <class A, class B, equation E>
void equation_of_two(int number) {
  for_each_case(cases(), "einsum_" + std::to_string(number), [&](const stored_case& c) {
    auto a = c.variable<float, A>("a");
    auto b = c.variable<float, B>("b");
    c.agrees([&] { return einsum<E>(a, b); }, 1e-5, 1, "a", a, "b", b);
  });
}
template <class T>
void equation_of_type(const std::string& type, double tolerance) {
  for_each_case(cases(), "einsum_" + type, [&](const stored_case& c) {
    auto a = c.variable<T, order3>("a");
    auto b = c.variable<T, order2>("b");
    c.agrees([&] { return einsum<"bij,jk->bik">(a, b); }, tolerance, 1, "a", a, "b", b);
  });
}

}  // namespace

TEST_CASE("running products along each dim, with their derivatives, also of zeros") {
  running<0>();
  running<1>();
  running<2>();
}
TEST_CASE("running products of every type") {
  running_of<double>("f64", 1e-14);
  running_of<bfloat16>("bf16", 0x1p-6);  // PyTorch rounds the products in the derivative to the type
  running_of<float16>("f16", 0x1p-7);
  running_of<std::int64_t>("i64");
  running_of<std::int32_t>("i32");
  running_of<std::uint8_t>("u8");
  running_of<bool>("bool");
}

TEST_CASE("equations of one operand") {
  equation_of_one<order3, "ijk->kij">(0);
  equation_of_one<order3, "ijk->ki">(1);
  equation_of_one<order3, "ijk->">(2);
  equation_of_one<order3, "kji">(3);
  equation_of_one<order3, "ijk->ijk">(4);
}
TEST_CASE("equations: products of matrices") {
  equation_of_two<order2, order2, "ij,jk->ik">(5);
  equation_of_two<order2, order2, "ij,jk">(6);
  equation_of_two<order2, order2, "ij,kj->ki">(7);
  equation_of_two<order3, order3, "bij,bjk->bik">(8);
  equation_of_two<order3, order3, "ibj,bjk->kbi">(9);
  equation_of_two<order4, order4, "bthd,bshd->bhts">(10);
  equation_of_two<order4, order3, "bthd,hde->bte">(11);
  equation_of_two<order3, order3, "ijk,kjl->li">(12);
  equation_of_two<order2, order1, "ij,j->i">(13);
  equation_of_two<order1, order2, "j,ij->i">(14);
  equation_of_two<order4, order2, "abcd,ce->abed">(22);
}
TEST_CASE("equations: products of elements, sums of one operand") {
  equation_of_two<order2, order1, "ij,k->ki">(15);
  equation_of_two<order2, order2, "bi,ib->b">(16);
  equation_of_two<order2, order2, "ij,ij->">(17);
  equation_of_two<order2, order2, "ij,ji->ij">(18);
  equation_of_two<order3, order2, "ijk,jl->ki">(19);
  equation_of_two<order2, order2, "ac,cB">(20);
  equation_of_two<order0, order1, ", i -> i">(21);
}
TEST_CASE("equations of every floating type") {
  equation_of_type<double>("f64", 1e-13);
  equation_of_type<bfloat16>("bf16", 0x1p-7);
  equation_of_type<float16>("f16", 0x1p-10);
}
