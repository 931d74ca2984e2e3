// SPDX-License-Identifier: MIT
// Messages between two ranks of a group over Gloo.
//
// The receiver sends the size and type that it expects as soon as the receive is posted, and is then ready
// for the data. The sender compares them before it sends, so that a message of another size or type is an
// error and not an overflow. If the receive is posted early, the sender does not wait for a round trip.
#pragma once

#include <weft/comm/fingerprint.hpp>
#include <weft/comm/gloo_group.hpp>

namespace weft::detail {

class gloo_message : public gloo_operation {
 public:
  gloo_message(const gloo_group& g, operation o)
      : group_(g),
        what_(std::move(o)),
        text_(what_.text()),
        mine_(what_, what_.root),
        other_(g.members[static_cast<std::size_t>(what_.root)]) {}

  queue_key queue() const override {
    return {static_cast<std::int64_t>(group_.number), other_, sends(), what_.tag};
  }
  std::string doing() const override { return text_; }
  rank_wait waits_in() const override { return {group_.id, rank_wait::message, {other_}, text_}; }

  void begin(gloo_mesh& mesh) override {
    peer = other_;
    try {
      mesh.start(slot(gloo_slot::ready), agreement(), *this);
      if (!sends()) mesh.start(slot(gloo_slot::data), data(), *this);
    } catch (const std::exception&) {
      closed_ = true;  // the connection is closed; the thread of the queue reports it
    }
  }
  void perform(gloo_mesh& mesh) override {
    if (closed_) throw ::gloo::IoException("the connection is closed");
    if (sends()) {
      mesh.finish(*buffers[0], agreement(), *this);
      if (!mine_.same_message(theirs_))
        throw comm_error(message_disagreement(group_.own(), text_, other_, theirs_.words()));
      mesh.start(slot(gloo_slot::data), data(), *this);
    }
    mesh.finish(*buffers[1], data(), *this);
    if (!sends()) mesh.finish(*buffers[0], agreement(), *this);  // is complete already
  }

 private:
  bool sends() const { return what_.kind == collective::send; }
  std::uint64_t slot(gloo_slot::kind k) const {
    return gloo_slot::of(k, group_.number, static_cast<std::uint32_t>(what_.tag));
  }
  transfer agreement() { return {other_, !sends(), sends() ? &theirs_ : &mine_, sizeof(fingerprint)}; }
  transfer data() const {
    const const_elements all = sends() ? what_.in : const_elements(what_.out);
    return {other_, sends(), const_cast<void*>(all.data), static_cast<std::size_t>(all.bytes())};
  }

  const gloo_group& group_;
  operation what_;
  std::string text_;
  fingerprint mine_, theirs_;
  int other_;  // the rank of the peer in the world
  bool closed_ = false;
};

}  // namespace weft::detail
