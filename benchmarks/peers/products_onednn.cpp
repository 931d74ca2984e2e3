// SPDX-License-Identifier: MIT
// With WEFT_PACKED, B has the layout that oneDNN chooses, into which constant weights can be reordered once.
#include <oneapi/dnnl/dnnl.hpp>

#include "products.hpp"

int main(int, char** values) {
  setenv("OMP_NUM_THREADS", values[1], 0);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  using type = dnnl::memory::data_type;
  std::vector<ops::task> tasks;
  for (const type t : {type::f32, type::bf16}) {
    const auto filled = [&](long rows, long columns, bool transposed, type as) {
      const dnnl::memory::desc stored(
          {rows, columns}, as, transposed ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{columns, 1});
      const dnnl::memory::desc plain(
          {rows, columns}, type::f32,
          transposed ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{columns, 1});
      dnnl::memory source(plain, engine), m(stored, engine);
      auto* x = static_cast<float*>(source.get_data_handle());
      for (long i = 0; i < rows * columns; ++i) x[i] = ops::element(i);
      dnnl::reorder(source, m).execute(stream, source, m);
      stream.wait();
      return m;
    };
    products::add_tasks(
        tasks, t == type::f32 ? "f32" : "bf16",
        [=, &stream](const products::shape& s, const products::form& f) {
          const dnnl::memory a = filled(s.m, s.k, f.a_transposed, t), c = filled(s.m, s.n, false, type::f32);
          dnnl::memory b = filled(s.k, s.n, f.b_transposed, t);
#ifdef WEFT_PACKED
          const dnnl::matmul::primitive_desc wished(
              {a.get_desc(), dnnl::memory::desc({s.k, s.n}, t, dnnl::memory::format_tag::any), c.get_desc()},
              engine);
          dnnl::memory plain = b;
          b = dnnl::memory(wished.weights_desc(), engine);
          dnnl::reorder(plain, b).execute(stream, plain, b);
          stream.wait();
#endif
          const dnnl::matmul::primitive_desc chosen({a.get_desc(), b.get_desc(), c.get_desc()}, engine);
          if (std::string(chosen.impl_info_str()).starts_with("ref"))
            throw std::runtime_error("nothing but loops on this processor");
          const dnnl::matmul product(chosen);
          return [=, &stream] {
            product.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
            stream.wait();
          };
        });
  }
  ops::serve(tasks);
}
