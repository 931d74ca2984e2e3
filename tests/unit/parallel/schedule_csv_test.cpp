// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <random>
#include <string>

#include <weft/parallel/schedule/check.hpp>
#include <weft/parallel/schedule/csv.hpp>
#include <weft/parallel/schedule/zero_bubble.hpp>

using namespace weft::pipeline;

namespace {
std::string failure(std::string_view text) {
  try {
    (void)schedule_from_csv(text, "s.csv");
  } catch (const weft::io_error& e) {
    return e.what();
  }
  return "read";
}
}  // namespace

TEST_CASE("csv: a table is read, with its chunks where its lines put them") {
  const schedule s = schedule_from_csv(
      "# one forward, one backward\n"
      "0F0, 0F1,,0B0,0B1\r\n"
      "\n"
      ",1F0,1I0,1W0,1F1,1B1\n");
  CHECK(s.micro_batches == 2);
  CHECK(s.stage_of == std::vector{0, 1});
  CHECK(s.steps[0].size() == 4);
  CHECK(s.steps[1][1] == step{step_kind::backward_input, 1, 0});
  CHECK(s.flush);
  CHECK_FALSE(check(s));
}

TEST_CASE("csv: what is written is read again") {
  for (const schedule& s :
       {gpipe(3, 4), interleaved_1f1b(2, 4, 2), zb_v(3, 5), with_messages(dual_pipe_v(2, 4))}) {
    const schedule again = schedule_from_csv(to_csv(s));
    CHECK(again == s);
  }
  CHECK(to_csv(with_messages(layer_wise(2))) == "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
}

TEST_CASE("csv: mistakes in the text are named with line and column") {
  CHECK(failure("0F0,0X0\n") ==
        "s.csv, line 1, column 6: unknown kind of step \"X\": must be F, B, I, W, SEND_F, RECV_F, SEND_B or "
        "RECV_B");
  CHECK(failure("0F0\nF0\n") == "s.csv, line 2, column 1: expected the number of a chunk here, as in 0F12");
  CHECK(failure("0F0, 0B\n") ==
        "s.csv, line 1, column 8: expected the number of a micro-batch here, as in 0F12");
  CHECK(failure("0F-1\n") ==
        "s.csv, line 1, column 3: expected the number of a micro-batch here, as in 0F12");
  CHECK(failure("-0F0\n") == "s.csv, line 1, column 1: expected the number of a chunk here, as in 0F12");
  CHECK(failure("0F0;0B0\n") ==
        "s.csv, line 1, column 4: the cell goes on after its micro-batch; cells are divided by commas");
  CHECK(failure("0F99999999999\n") == "s.csv, line 1, column 3: the number of the micro-batch is too large");
  CHECK(failure("0F0,0B0\n0F0,1B0\n") ==
        "s.csv, line 2, column 1: chunk 0 is on stage 0 already; a chunk has one stage");
  CHECK(failure("0F0,0B0\n2F0,2B0\n") ==
        "s.csv, line 2, column 1: the schedule ends without a step of chunk 1");
  CHECK(failure("0F0,0B0\n,,\n") == "s.csv, line 2, column 1: a stage without steps");
  CHECK(failure("") == "s.csv, line 0, column 1: the schedule has no steps");
}

TEST_CASE("csv: numbers do not ask for more memory than the text") {
  CHECK(failure("0F0,0B2000000000\n") ==
        "s.csv, line 1, column 5: \"backward of chunk 0, micro-batch 2000000000\": the schedule has fewer "
        "steps than that");
  CHECK(failure("0F0,0F1,0F2,0F3\n3F0\n") ==
        "s.csv, line 2, column 1: the schedule ends with 5 steps, but names 4 chunks and 4 micro-batches, "
        "each of which "
        "needs a forward");
}

TEST_CASE("csv: any text is a schedule with a verdict, or an error") {
  std::mt19937 random(7);
  const std::string letters = "0123FBIWSEND_RCV,,,\n\n# -\r9";
  const std::string good = to_csv(with_messages(zb_h1(3, 4)));
  int read = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = i % 2 ? good : std::string(random() % 60, '0');
    for (unsigned edits = i % 2 ? random() % 3 : unsigned(text.size()); edits-- > 0;)
      text[random() % text.size()] = letters[random() % letters.size()];
    if (failure(text) != "read") continue;
    ++read;
    (void)check(schedule_from_csv(text));
  }
  CHECK(read > 100);
}

TEST_CASE("csv: many stages are checked in time linear in their steps") {
  std::string text;
  const int stages = 60000;
  for (int k = 0; k < stages; ++k) text += std::to_string(k) + "F0," + std::to_string(k) + "B0\n";
  CHECK_FALSE(check(schedule_from_csv(text)));
}
