// SPDX-License-Identifier: MIT
// What the parts of train_gpt share: the main program, the units that train, and what all units do alike.
#pragma once

#include <atomic>
#include <csignal>

#include <weft/comm/communicator.hpp>
#include <weft/device/counting.hpp>
#include <weft/train/text.hpp>
#include <weft/weft.hpp>

#include "train_gpt_settings.hpp"

namespace job {

extern std::atomic<std::size_t> allocations;  // since the program began
extern volatile std::sig_atomic_t interrupted;

/// The device that was asked for; that it is missing is a mistake of the user's.
weft::device device_of(const settings& s);

/// A batch whose loss was not finite, to look at once more.
struct suspect {
  weft::text_samples::tokens inputs, labels;
  weft::context::random_state randomness;
};
/// What left the finite numbers first, found on the host with a copy of the model.
std::string look_again(const settings& s, const weft::state_dict_t& whole, const suspect& batch);

/// What a rank will hold, send and do in a steady step.
struct forecast {
  std::size_t peak_bytes = 0, reserved_bytes = 0;
  weft::index_t sent_bytes = 0;
  weft::device_work work;
};

/// A unit that is compiled into this program (train_gpt_variant.cpp).
struct unit {
  std::string precision, recompute;
  int (*train)(const settings&, weft::communicator&);               // as one of the ranks; the exit code
  /// Without a device, in milliseconds. Whether the device is to hold messages: backend::holds_messages.
  forecast (*forecast_of)(const settings&, int rank, int ranks, bool holds_messages);
};
inline std::vector<unit>& units() {
  static std::vector<unit> all;
  return all;
}

/// `s` with the way to recompute that costs least and stays within --memory-limit on every rank. Where there
/// is none, an error that says which other settings would fit.
settings within_memory(const settings& s, int ranks);

}  // namespace job
