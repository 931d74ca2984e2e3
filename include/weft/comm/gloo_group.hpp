// SPDX-License-Identifier: MIT
// A group of ranks over Gloo: an identifier and a list of members. Connections and threads belong to the
// mesh, so an unused group costs nothing.
#pragma once

#include <weft/comm/gloo_mesh.hpp>

namespace weft::detail {

/// Slots of Gloo, which identify a transfer on both sides.
struct gloo_slot {
  enum kind : std::uint64_t { collective, ready, data, start };  // messages use `ready` and `data`
  static std::uint64_t of(kind k, std::uint64_t group, std::uint32_t step_or_tag) {
    return k << 62 | group << 32 | step_or_tag;
  }
};

struct gloo_group {
  gloo_group(std::shared_ptr<gloo_mesh> m, std::string name, std::uint64_t n, std::vector<int> ranks, int own)
      : mesh(std::move(m)), id(std::move(name)), number(n), members(std::move(ranks)), rank(own) {
    mesh->remember(id);
  }
  gloo_group(const gloo_group&) = delete;
  gloo_group& operator=(const gloo_group&) = delete;
  ~gloo_group() { mesh->forget(id); }

  int size() const { return static_cast<int>(members.size()); }
  int own() const { return members[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<gloo_mesh> mesh;
  std::string id;  // the same on all members, and unique
  std::uint64_t number;  // likewise
  std::vector<int> members;  // by their ranks in the world
  int rank;                  // of this process
};

/// The handle of an operation. Keeps the group alive, which the operation refers to until it is complete.
class gloo_state : public work::state {
 public:
  gloo_state(std::shared_ptr<gloo_group> g, std::shared_ptr<gloo_operation> o)
      : group_(std::move(g)), operation_(std::move(o)) {}
  bool poll() override { return operation_->over; }
  void wait(std::chrono::milliseconds limit) override { group_->mesh->wait(*operation_, limit); }
  std::exception_ptr failure() const override {
    if (!operation_->over || !operation_->failure) return nullptr;
    try {
      group_->mesh->fail_with(*operation_->failure, *operation_);
    } catch (...) {
      return std::current_exception();
    }
  }

 private:
  std::shared_ptr<gloo_group> group_;
  std::shared_ptr<gloo_operation> operation_;
};

}  // namespace weft::detail
