// SPDX-License-Identifier: MIT
// Ranks with a fake GPU each, over NCCL; and a communicator that moves operations on host memory to the
// memory of the rank's device.
#pragma once

#include <weft/comm/threads.hpp>
#include <weft/gpu/nccl.hpp>

namespace device_ranks {

using namespace weft;

/// Kernels copy the operands to the device; they are still queued when the operation is posted.
class on_device : public communicator {
 public:
  on_device(communicator& over, device where) : over_(&over), where_(std::move(where)) {}
  on_device(std::shared_ptr<communicator> over, device where)
      : held_(std::move(over)), over_(held_.get()), where_(std::move(where)) {}

  const char* name() const override { return "on device"; }
  int rank() const override { return over_->rank(); }
  int size() const override { return over_->size(); }
  void abort(const std::string& reason) override { over_->abort(reason); }

 protected:
  std::shared_ptr<communicator> divide(int color, int key, comm_options o) override {
    auto part = over_->split(color, key, std::move(o));
    return part ? std::make_shared<on_device>(std::move(part), where_) : nullptr;
  }
  work start(operation o) override {
    const auto limit = o.timeout;
    auto s = std::make_shared<state>(where_, o);
    s->start(*over_, std::move(o));
    return work(std::move(s), limit);
  }

 private:
  class state : public work::state {
   public:
    state(device where, const operation& o)
        : where_(std::move(where)), out_(o.out), in_memory_(bytes(o.in)), out_memory_(bytes(o.out)) {}

    void start(communicator& over, operation o) {
      const bool same = o.in.data == o.out.data;
      o.in = {copy_of(o.in, in_memory_), o.in.count, o.in.type, memory_space::device};
      o.out = {same ? const_cast<void*>(o.in.data) : copy_of(o.out, out_memory_), o.out.count, o.out.type,
               memory_space::device};
      result_ = o.out.data;
      if (o.kind == collective::send) o.out = {};
      if (o.kind == collective::receive) o.in = {};
      if (o.kind == collective::barrier) o.in = {}, o.out = {};
      work_ = over.pass_on(std::move(o));
    }
    bool poll() override {
      if (!work_.is_completed()) return false;
      finish();
      return true;
    }
    void wait(std::chrono::milliseconds limit) override {
      try {
        work_.wait(limit);
      } catch (const error&) {  // failure() reports it
      }
      finish();
    }
    std::exception_ptr failure() const override { return work_.exception(); }

   private:
    static buffer memory(const device& where, std::size_t n) {
      return where.allocate(std::max(n, std::size_t{1}));
    }
    buffer bytes(const const_elements& e) { return memory(where_, static_cast<std::size_t>(e.bytes())); }
    void* copy_of(const const_elements& e, buffer& memory_of) {
      const auto n = static_cast<std::size_t>(e.bytes());
      if (n == 0) return memory_of.data();
      const buffer through = memory(where_, n);
      where_->upload(through.data(), e.data, n);
      where_->fill_zero(memory_of.data(), n);
      copy_elements(*where_, e.type, memory_of.data(), through.data(), e.count);
      return memory_of.data();
    }
    void finish() {
      if (is_finished_ || work_.exception()) return;
      is_finished_ = true;
      const auto n = static_cast<std::size_t>(const_elements(out_).bytes());
      if (n > 0) where_->download(out_.data, result_, n);
    }

    device where_;
    elements out_;
    buffer in_memory_, out_memory_;
    void* result_ = nullptr;
    bool is_finished_ = false;
    work work_;
  };

  std::shared_ptr<communicator> held_;
  communicator* over_;
  device where_;
};

/// Calls f(ranks, host, where) on n ranks, which are threads of this process; rank r has device r.
template <class F>
void run(int n, F f, const nccl_options& o = {}) {
  run_ranks(n, [&](communicator& host) {
    const device where(std::make_shared<gpu::cuda_backend>(host.rank()));
    nccl_communicator ranks(host, where, o, std::chrono::seconds(60));
    f(ranks, host, where);
  });
}

}  // namespace device_ranks
