// SPDX-License-Identifier: Apache-2.0
// What the frames between coordinator, workers and parameter servers say. Each struct turns into a
// frame and back; broken bytes are data_loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/resource_host.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/frame.h"

namespace cohort::rpc {

enum class MessageType : std::uint16_t {
  hello = 1,            // first on every channel, answered
  pull = 2,             // values of variables
  push = 3,             // updates of variables
  run = 4,              // closures for a worker, one way
  completed = 5,        // their ends, one way back
  peek = 6,             // elements of an iterator, not consumed
  cancel = 7,           // closures that should not start any more, one way
  ping = 8,             // of a server: whether its peer still lives; a Requester answers by itself
  program_request = 9,  // of a worker: an element waits for a program, one way
  program_reply = 10,   // what it waits for, one way
};

// Who opens this channel; refused when job, coordinator or start are not the server's.
struct Hello {
  std::string task;  // "chief:0", "worker:1"
  std::string job_id;
  std::uint64_t coordinator_incarnation = 0;
  std::uint64_t server_incarnation = 0;  // whom the caller means to reach; 0: any start of it
  PayloadChecksums payload_checksums = PayloadChecksums::between_hosts;  // the caller's wish
};
struct HelloReply {
  bool has_payload_sums = false;  // both ends send them
};

struct PullRequest {
  std::vector<std::uint64_t> variables;
  bool wants_versions = false;
};
struct PullReply {
  std::vector<at::Tensor> values;       // in the request's order
  std::vector<std::uint64_t> versions;  // of each, where they were wanted
};

struct Effect {
  enum class Kind : std::uint8_t {
    apply,
    assign,
    assign_add,
    assign_sub,
    scatter_add,
    merge_average  // assigns where the version is still `version`, else moves towards the statistic
  };
  Kind kind = Kind::assign;
  std::uint64_t variable = 0;
  std::string rule;                 // apply only
  std::vector<double> hyper;        // apply; merge_average: the momentum
  std::vector<at::Tensor> tensors;  // gradient | value | ids, rows | value, statistic
  std::uint64_t version = 0;        // merge_average: which the worker has pulled
};

// All updates of one segment of a closure for one server, in order.
struct PushRequest {
  std::uint64_t closure_id = 0;     // 0: not from a closure, always applied
  std::uint64_t low_watermark = 0;  // every closure id below it is retired: drop what comes late
  std::uint8_t phase = 0;           // reserved for a two-step commit
  std::uint32_t segment = 0;        // of the closure: 0, 1, …
  std::vector<Effect> effects;
};

struct PushReply {
  bool was_applied = true;  // false: it had come before, or its closure is retired
};

struct ClosureCall {
  std::uint64_t closure_id = 0;
  std::uint32_t function_id = 0;
  std::uint64_t seed = 0;
  std::vector<std::uint64_t> resources;  // the worker's resource ids, in argument order
  std::vector<at::Tensor> inputs;
  // In an epoch: draws from the first resource are those of the worker's step of this number, 0, 1,
  // …, whatever was drawn before. Unset: what comes next.
  std::optional<std::uint64_t> epoch_step = {};
};
struct RunBatch {
  std::uint64_t low_watermark = 0;
  std::vector<ClosureCall> closures;
};

struct ClosureEnd {
  // end_of_data: a step of an epoch for which there is no element; it has done nothing.
  enum class Status : std::uint8_t { ok, failed, cancelled, needs_program, end_of_data };
  std::uint64_t closure_id = 0;
  Status status = Status::ok;
  std::vector<at::Tensor>
      tensors;                 // ok: outputs; needs_program: the elements drawn, field by field
  std::optional<Error> error;  // failed
  std::uint64_t pulled_bytes = 0;
  std::uint64_t pushed_bytes = 0;
  std::uint64_t pushes_dropped = 0;  // that were answered "not applied"
  std::uint64_t rows = 0;            // ok, in an epoch: of its first element's first field
};
struct CompletedBatch {
  std::vector<ClosureEnd> ends;
};

// Those that have not started end as cancelled; the others end as they do.
struct CancelRequest {
  std::vector<std::uint64_t> closures;
};

struct PeekRequest {
  std::uint64_t resource = 0;
  std::uint32_t count = 2;
};
// Answered by a frame: fields of the first element, then of the second…; fewer at the end of the
// data.
struct PeekReply {
  std::uint32_t fields = 0;
  std::vector<at::Tensor> tensors;
};

// A function of an iterator's pipeline has no program for elements of these shapes
// (data/program_supply.h). The element waits on the worker meanwhile.
struct ProgramRequest {
  std::uint64_t resource = 0;
  std::string function;
  std::vector<at::Tensor> element;  // field by field
};
// Also sent to who has not asked, since other workers will meet such elements.
struct ProgramReply {
  std::uint64_t resource = 0;
  std::string function;
  std::vector<TensorSpec> element;
  Bytes program;
  std::optional<Error> error;  // in place of a program
};

COHORT_API Frame ping_frame();
COHORT_API Frame to_frame(const Hello& message);
COHORT_API Frame to_frame(const HelloReply& message);
COHORT_API Frame to_frame(const PullRequest& message);
COHORT_API Frame to_frame(PullReply message);
COHORT_API Frame to_frame(PushRequest message);
COHORT_API Frame to_frame(const PushReply& message);
COHORT_API Frame to_frame(RunBatch message);
COHORT_API Frame to_frame(CompletedBatch message);
COHORT_API Frame to_frame(const PeekRequest& message);
COHORT_API Frame to_frame(const CancelRequest& message);
COHORT_API Frame to_frame(PeekReply message);
COHORT_API Frame to_frame(ProgramRequest message);
COHORT_API Frame to_frame(const ProgramReply& message);

COHORT_API Hello hello_of(const Frame& frame);
COHORT_API HelloReply hello_reply_of(const Frame& frame);
COHORT_API PullRequest pull_of(const Frame& frame);
COHORT_API PullReply pull_reply_of(Frame frame);
COHORT_API PushRequest push_of(Frame frame);
COHORT_API PushReply push_reply_of(const Frame& frame);
COHORT_API RunBatch run_of(Frame frame);
COHORT_API CompletedBatch completed_of(Frame frame);
COHORT_API PeekRequest peek_of(const Frame& frame);
COHORT_API CancelRequest cancel_of(const Frame& frame);
COHORT_API PeekReply peek_reply_of(Frame frame);
COHORT_API ProgramRequest program_request_of(Frame frame);
COHORT_API ProgramReply program_reply_of(const Frame& frame);

}  // namespace cohort::rpc
