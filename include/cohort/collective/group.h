// SPDX-License-Identifier: Apache-2.0
// How the values of several replicas or workers are combined, and the workers of a synchronous job,
// which exchange messages and reduce tensors with each other (the role of torch.distributed's
// ProcessGroup and tf's collective ops).
//
//   InProcessWorkers workers(2);
//   workers.group(0)->all_reduce(loss, ReduceOp::sum, Deadline());  // on another thread: group(1)
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort {

// tf.distribute.ReduceOp, with the largest and the smallest value as torch.distributed has them.
// For floating-point numbers max and min are NaN where a value is NaN; the sign of a zero is not
// defined where zeros of both signs meet. Strategy::reduce() and ReplicaContext::all_reduce() take
// all of them; a Group takes sum and mean alone.
enum class ReduceOp : std::uint8_t { sum, mean, max, min };
// "sum", as in messages; "an unknown operation" for a number that is none.
COHORT_API std::string_view name_of(ReduceOp op);

// A ReduceOp, or a name of tf in any letter case, "SUM" or "MEAN". A value type.
class COHORT_API ReduceOpOrName {
 public:
  ReduceOpOrName(ReduceOp op) : op_(op) {}  // NOLINT: conversions are the point
  // Throws invalid_argument for any other text.
  ReduceOpOrName(std::string_view name);                                        // NOLINT
  ReduceOpOrName(const char* name) : ReduceOpOrName(std::string_view(name)) {}  // NOLINT
  ReduceOpOrName(std::nullptr_t) = delete;                                      // NOLINT: not 0
  operator ReduceOp() const { return op_; }                                     // NOLINT

 private:
  ReduceOp op_;
};

// Dimensions of a tensor; a negative number counts from the last one. A value type.
class COHORT_API Axes {
 public:
  Axes(std::int64_t axis) : numbers_{axis} {}                         // NOLINT
  Axes(std::initializer_list<std::int64_t> axes) : numbers_(axes) {}  // NOLINT
  explicit Axes(std::vector<std::int64_t> axes) : numbers_(std::move(axes)) {}
  Axes(std::same_as<char> auto) = delete;  // NOLINT: 'a' is no number
  // The elements of each replica are not combined, only the replicas (tf's axis=None).
  static Axes none() {
    Axes axes{};
    axes.is_none_ = true;
    return axes;
  }
  bool is_none() const { return is_none_; }
  const std::vector<std::int64_t>& numbers() const { return numbers_; }

 private:
  std::vector<std::int64_t> numbers_;
  bool is_none_ = false;
};

// Where values of replicas on several GPUs of one process are added (the cross_device_ops of
// tf.distribute.MirroredStrategy). Both have the same results, to the bit.
enum class CrossDeviceOps : std::uint8_t {
  // On one device, to which all values are copied (tf.distribute.ReductionToOneDevice).
  reduction_to_one_device,
  // Pairs of devices add their values at the same time, then pairs of pairs do
  // (tf.distribute.HierarchicalCopyAllReduce).
  hierarchical_copy,
};

// tf.distribute.experimental.CommunicationImplementation.
enum class CommunicationImplementation : std::uint8_t { automatic, ring, nccl };
// Parses the name, "AUTO", "RING" or "NCCL", in any letter case. Throws invalid_argument for any
// other.
COHORT_API CommunicationImplementation communication_implementation(std::string_view name);

// The transport of values between workers that are processes. All backends have the same results,
// to the bit.
enum class GroupBackend : std::uint8_t {
  // shared_memory if all workers are on one host. On several hosts tcp; but if some have several
  // workers, these add large sums in shared memory first, and only one of them exchanges the sum
  // with other hosts, and gets large broadcasts from them. For that, the workers of a host must be
  // neighbours in the order of ranks, and a subtree of the balanced tree (Group::all_reduce), for
  // example 2, 4 or 8 workers on each host, one host after the other.
  automatic,
  shared_memory,  // refused if the workers are on several hosts
  tcp,            // between all workers, also those of one host
  // Open MPI or another MPI, which knows the fabric of its cluster: for processes that mpirun or
  // srun has started. Only where Cohort was built with MPI, and only if it is asked for by name.
  mpi,
};

// How workers exchange values over a network (tf.distribute.experimental.CommunicationOptions).
// Results do not depend on bytes_per_pack and implementation. Both are checked; implementation has
// no effect, and bytes_per_pack that of a strategy alone, on the gradients of several workers:
// replicas of one process share memory. A value type.
struct COHORT_API CommunicationOptions {
  // How many bytes of several gradients travel in one call: a call is full when it has more than
  // these; 0: all of them. All workers must have the same number. Must not be negative.
  std::int64_t bytes_per_pack = 0;
  // For each wait for other workers; not given: that of the strategy. Replicas of one process wait
  // for each other without one.
  std::optional<Duration> timeout = {};
  CommunicationImplementation implementation = CommunicationImplementation::automatic;

  // Throws invalid_argument, naming the field, for a value that is out of range.
  void check() const;
  // These options, where `call` has the default value; else those of `call`. So a call cannot
  // restore a default (as in TensorFlow).
  CommunicationOptions merged_with(const CommunicationOptions& call) const;
};

namespace internal {
// Groups tensors of these sizes, in bytes: a new pack begins when the current one is larger than
// bytes_per_pack. Returns the sizes in each pack.
COHORT_API std::vector<std::vector<std::int64_t>> packs_of(const std::vector<std::int64_t>& sizes,
                                                           std::int64_t bytes_per_pack);
}  // namespace internal

}  // namespace cohort

namespace cohort::collective {

struct Call;  // collective/groups/call.h

// A group of size() members; each object is the view of one member, rank().
//
// All members must make the same calls in the same order. Each call has a sequence number, the
// number of calls before it ("call 3" in messages). If members make different calls (another
// operation, root, ReduceOp, dtype or shape), all of them throw the same invalid_argument, which
// names the first difference; the call is over then, and the group stays usable. If the arguments
// of one member are refused, all members throw the error of that member.
//
// Every call has a deadline, by which all members must have begun it. If one has not, the others
// throw deadline_exceeded at the first deadline of any, naming the missing members. They would be
// one call ahead of the late ones, so the group ends for all: later calls, and those of the late
// ones, throw aborted. If a member is destroyed, calls of the others that need it throw aborted. A
// member that stops in the middle of a call is found some seconds after the deadline.
//
// Tensors are dense and on the CPU. They may have any strides; contiguous ones are not copied. A
// call returns, or throws, after the last access of any member to this member's tensors.
//
// A member must be used from one thread at a time; split() is thread-safe.
class COHORT_API Group {
 public:
  Group() = default;
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The name of a member in messages, and the origin of its errors.
  virtual std::string member_name(int rank) const { return "worker:" + std::to_string(rank); }
  // Returns the contributions of all members in the order of their ranks. `what` is the name of the
  // content, for messages.
  virtual std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) = 0;
  // Returns a new group of the same members, whose calls are independent of this one's (like
  // MPI_Comm_dup). The n-th calls of all members return the same group, so all members must create
  // their groups in the same order. The new group keeps this one alive.
  virtual std::shared_ptr<Group> split() = 0;

  // Replaces the values of each tensor by their sum or mean over the members. Elements are added in
  // a balanced tree over the ranks, ((0+1)+(2+3))+4 (float16 and bfloat16 as float32, which is
  // rounded once at the end; integers wrap), so every member, every run and every backend gets the
  // same bits. All tensors together
  // are one call, and much faster than one call for each. A mean of integers is refused, since
  // their tensor cannot hold it: convert them first. bool is refused, and so are max and min. The
  // tensors must not overlap.
  void all_reduce(std::span<const at::Tensor> tensors, ReduceOp op, Deadline deadline);
  void all_reduce(const at::Tensor& tensor, ReduceOp op, Deadline deadline) {
    all_reduce(std::span(&tensor, 1), op, deadline);
  }
  // Like all_reduce(), but only the member `root` gets the results; the tensors of the others keep
  // their values.
  void reduce(std::span<const at::Tensor> tensors, ReduceOp op, int root, Deadline deadline);
  void reduce(const at::Tensor& tensor, ReduceOp op, int root, Deadline deadline) {
    reduce(std::span(&tensor, 1), op, root, deadline);
  }
  // Copies the values of the tensors of the member `root` to those of all others.
  void broadcast(std::span<const at::Tensor> tensors, int root, Deadline deadline);
  void broadcast(const at::Tensor& tensor, int root, Deadline deadline) {
    broadcast(std::span(&tensor, 1), root, deadline);
  }
  // Concatenates the tensors of all members along `axis`, in the order of ranks. Their sizes along
  // the axis may differ and may be 0; their other sizes must be equal.
  at::Tensor all_gather(const at::Tensor& tensor, std::int64_t axis, Deadline deadline);
  // Returns this member's rows of what all_reduce() would compute. Rows are distributed as
  // at::tensor_split does: the first (rows % size()) members get one row more than the others.
  at::Tensor reduce_scatter(const at::Tensor& tensor, ReduceOp op, Deadline deadline);
  // Sends rows of `tensor` to each member: the first rows_of_each[0] rows to member 0, those after
  // them to member 1, and so on (MPI_Alltoallv). Returns the rows that all members sent to this
  // one, in the order of their ranks. rows_of_each has size() numbers, whose sum is the number of
  // rows; members may send different numbers of rows. The dtype and the other sizes must be equal
  // on all members.
  at::Tensor all_to_all(const at::Tensor& tensor, std::span<const std::int64_t> rows_of_each,
                        Deadline deadline);
  // Returns when all members have called it.
  void barrier(Deadline deadline);

 protected:
  // Performs a call whose arguments are checked. The default does it by exchange(), which copies
  // the tensors of each member to all others; backends override it for speed.
  virtual void perform(Call& call, Deadline deadline);

 private:
  std::uint64_t num_performed_ = 0;  // by the default
};

// Calls `make` and exchanges the results. If it throws on one member, all members throw that error,
// with that member's name as its origin; if it throws on several, the error of the lowest rank.
COHORT_API std::vector<Bytes> exchange_result(Group& group, const std::function<Bytes()>& make,
                                              std::string_view what, Deadline deadline);

}  // namespace cohort::collective

namespace cohort::collective::in_process {
class Splits;
}

namespace cohort {

// Creates the groups of workers that are threads of one process, for tests and for programs that
// use several threads. The workers reduce each other's tensors where they lie, without copies.
//
//   InProcessWorkers workers(2);
//   std::thread other([&] { MultiWorkerMirroredStrategy strategy(workers.group(1)); … });
//
// A handle; the groups keep the shared state alive. Thread-safe.
class COHORT_API InProcessWorkers {
 public:
  // Throws invalid_argument if num_workers < 1.
  explicit InProcessWorkers(int num_workers);
  // The group of all workers, for the worker of this rank; call it once per worker. Throws
  // invalid_argument if the rank is not in [0, num_workers).
  std::shared_ptr<collective::Group> group(int rank) const;

 private:
  std::shared_ptr<collective::in_process::Splits> splits_;
};

}  // namespace cohort
