// SPDX-License-Identifier: Apache-2.0
// Tests whose program mpirun has started several times: all processes run the same tests in the
// same order, each as one member of a group, and see the results of all.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/collective/mpi_group.h"
#include "cohort/core/bytes.h"

namespace cohort::testing {

inline void write_result(ByteWriter& out, const at::Tensor& value) {
  const at::Tensor plain = value.contiguous();
  out.u8(static_cast<std::uint8_t>(plain.scalar_type()));
  out.sizes(plain.sizes());
  out.blob({static_cast<const std::byte*>(plain.data_ptr()), plain.nbytes()});
}
inline void write_result(ByteWriter& out, const std::string& value) { out.text(value); }
inline void write_result(ByteWriter& out, std::int64_t value) { out.zigzag(value); }
template <class T>
void write_result(ByteWriter& out, const std::vector<T>& values) {
  out.varint(values.size());
  for (const T& value : values) write_result(out, value);
}

inline void read_result(ByteReader& in, at::Tensor& value) {
  const auto dtype = static_cast<at::ScalarType>(in.u8());
  value = at::empty(in.sizes(), dtype);
  const std::span<const std::byte> bytes = in.blob();
  if (!bytes.empty()) std::memcpy(value.data_ptr(), bytes.data(), bytes.size());
}
inline void read_result(ByteReader& in, std::string& value) { value = in.text(); }
template <class T>
requires std::is_integral_v<T>
void read_result(ByteReader& in, T& value) { value = static_cast<T>(in.zigzag()); }
template <class T>
void read_result(ByteReader& in, std::vector<T>& values) {
  values.resize(in.count());
  for (T& value : values) read_result(in, value);
}

// The processes of this job. Used only from the test's thread.
class MpiJob {
 public:
  // The number of processes; 0 if mpirun has not started this one.
  static int size() {
    const char* const size = std::getenv("OMPI_COMM_WORLD_SIZE");
    return size == nullptr ? 0 : std::atoi(size);
  }
  static MpiJob& get() {
    static MpiJob job;
    return job;
  }
  static Deadline late() { return Deadline::after(std::chrono::seconds(60)); }

  int rank() const { return control_->rank(); }
  // A new group of all processes.
  static std::shared_ptr<collective::Group> group() { return collective::mpi_group({}, late()); }
  // Waits for all, whatever the group under test does.
  void meet() { control_->barrier(late()); }
  // The arguments of all processes, in the order of ranks.
  template <class R>
  std::vector<R> results(const R& mine) {
    ByteWriter out;
    write_result(out, mine);
    std::vector<R> all;
    for (const Bytes& bytes : control_->exchange(out.take(), "results", late())) {
      ByteReader in(bytes, "a result");
      R result{};
      read_result(in, result);
      all.push_back(std::move(result));
    }
    return all;
  }

 private:
  MpiJob() : control_(group()) {}
  const std::shared_ptr<collective::Group> control_;
};

}  // namespace cohort::testing
