// SPDX-License-Identifier: MIT
// within 16: the tensors of this class cannot be found: make it a plain struct
// within 16: hidden_table
// within 16: specialise weft::holds_no_tensors
#include <weft/weft.hpp>
using namespace weft;
class hidden_table {
 public:
  hidden_table();
  ~hidden_table();

 private:
  linear<4, 4> inside_;
};
struct model {
  linear<4, 2> layer;
  hidden_table table;
};
void f(model& m) { sgd{}.step(m); }
