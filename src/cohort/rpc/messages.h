// SPDX-License-Identifier: Apache-2.0
// The messages between coordinator, workers and parameter servers. Each struct converts to a frame
// and back; the conversion throws data_loss for broken bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/effect_handler.h"
#include "cohort/core/file_fingerprint.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/frames/frame.h"
#include "cohort/rpc/membership.h"

namespace cohort::rpc {

enum class MessageType : std::uint16_t {
  hello = 1,            // the first request on every channel
  pull = 2,             // values of variables
  push = 3,             // updates of variables
  run = 4,              // closures for a worker, one way
  completed = 5,        // how closures ended, one way
  peek = 6,             // reads elements of an iterator without consuming them
  cancel = 7,           // closures that must not start any more, one way
  ping = 8,             // asks for a sign of life; servers and Requester answer it
  program_request = 9,  // from a worker: an element needs a program, one way
  program_reply = 10,   // that program, one way
  export_state = 11,    // values and slots of variables
  import_state = 12,    // the same, to be taken
  erase = 13,           // variables that nobody uses, or rows of tables
  cut = 14,             // a moment whose values a server keeps until they are exported
  export_cut = 15,      // the values and slots that variables had at that moment
  announce = 16,        // variables that all workers of a job of version 1 share
  find = 17,            // where those variables are
  write_cut = 18,       // a server writes these itself (rpc/written_cut.h)
  snapshot = 19         // a moment whose values a server keeps for pulls
};
struct MessageKind {
  MessageType type;
  std::string_view name;  // for messages of errors
};

// Identifies who opens this channel; refused if job, coordinator or start differ from the server's.
struct Hello {
  static constexpr MessageKind kKind{MessageType::hello, "hello message"};
  std::string task;  // "chief:0", "worker:1"
  std::string job_id;
  std::uint64_t coordinator_incarnation = 0;
  std::uint64_t server_incarnation = 0;  // the start of the server that the caller expects; 0: any
  PayloadChecksums payload_checksums = PayloadChecksums::between_hosts;  // the caller's wish
  net::HostProof host = {};                                              // the caller's
};
struct HelloReply {
  static constexpr MessageKind kKind{MessageType::hello, "hello reply"};
  bool has_payload_sums = false;  // both ends send payload checksums
};

struct PullRequest {
  static constexpr MessageKind kKind{MessageType::pull, "pull message"};
  std::vector<std::uint64_t> variables;
  bool wants_versions = false;
  std::uint64_t placement = 0;  // the version of the placement by which the server was found
  // The rows that are wanted of the first variables, int64 [n] each; the others are wanted whole.
  std::vector<at::Tensor> row_ids = {};
  // With wants_versions, of each variable: the version of the value that the caller has, which does
  // not come again; 0: none. Empty: it has none of any.
  std::vector<std::uint64_t> known = {};
  std::uint64_t snapshot = 0;  // of the moment of this SnapshotRequest; 0: of now

  // Whether a value of this version, of the variable at this index, does not come.
  bool has(std::size_t index, std::uint64_t version) const {
    return index < known.size() && known[index] != 0 && known[index] == version;
  }
};
struct PullReply {
  static constexpr MessageKind kKind{MessageType::pull, "pull reply"};
  std::vector<at::Tensor> values;       // in the request's order, without those that it has
  std::vector<std::uint64_t> versions;  // of each variable, if they were requested
};

using cohort::internal::Effect;

// Names a push, so that a server applies it at most once, however often it comes.
struct PushId {
  // The task whose closures or steps these are. 0: the coordinator's; n + 1: those of worker n,
  // where each worker runs the program by itself.
  std::uint64_t origin = 0;
  std::uint64_t incarnation = 0;  // the start of the origin
  std::uint64_t number = 0;       // of the closure or step; 0: of neither, always applied
  std::uint32_t segment = 0;      // of the closure: 0, 1, …
};

// All updates for one server from one segment of a closure, in order.
struct PushRequest {
  static constexpr MessageKind kKind{MessageType::push, "push message"};
  PushId id;
  std::uint64_t low_watermark = 0;  // closures below it are retired: their late pushes are dropped
  std::uint64_t placement = 0;      // as in PullRequest
  std::vector<Effect> effects;
  std::optional<PullRequest> pull = {};  // is answered with the push, by the values after it
};

struct PushReply {
  static constexpr MessageKind kKind{MessageType::push, "push reply"};
  bool was_applied = true;  // false: it was applied before, or its closure is retired
  std::optional<PullReply> pulled = {};
};

using cohort::internal::OptimizerSlots;

// A server's record of the pushes of one origin.
struct AppliedRecord {
  struct Push {
    std::uint64_t number = 0;
    std::uint32_t segment = 0;
  };
  std::uint64_t origin = 0;
  std::uint64_t incarnation = 0;
  std::uint64_t low_watermark = 0;
  std::vector<Push> applied = {};
  std::vector<std::uint64_t> earlier = {};  // incarnations of the origin that have ended
};
// Rows of a variable with their slots. A variable without rows is whole.
struct StateRange {
  std::uint64_t variable = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = Slice::kAllRows;
  // In place of rows of a table, the number of updates that keys without rows have had. They are in
  // parts, which first_row and rows count.
  bool is_of_counts = false;

  bool is_whole() const { return rows == Slice::kAllRows; }
};
// The size of a table on one server.
struct TableUse {
  std::uint64_t rows = 0;
  std::uint64_t capacity = 0;   // 0: any number of rows
  std::uint64_t row_bytes = 0;  // the value and the slots of one row
  std::uint64_t bytes = 0;      // all memory of the table, also that which waits for more rows
  std::uint64_t counted = 0;    // keys without rows whose updates are counted
};
// The keys of a table's rows. Its ranges count rows in the order in which they got memory, and some
// of these have no key.
struct TableRows {
  at::Tensor keys = {};        // int64 [n], of the rows of the state, or of its counts
  std::uint64_t rows_end = 0;  // where the last range ends
  TableUse use = {};
};
struct StateOfRange {
  StateRange range = {};
  std::uint64_t version = 0;  // of the value that they are of
  at::Tensor value = {};      // counts: int64 [n]
  std::vector<OptimizerSlots> slots = {};
  std::optional<TableRows> table = {};
};
struct ExportRequest {
  static constexpr MessageKind kKind{MessageType::export_state, "export request"};
  std::uint64_t placement = 0;
  std::vector<StateRange> ranges;
  bool has_slots = true;
  bool has_applied = false;
};
// The server keeps the values of this moment until they are exported, or until the cut ends. It has
// one cut at a time: the next one ends it. The reply is empty.
struct CutRequest {
  static constexpr MessageKind kKind{MessageType::cut, "cut request"};
  std::uint64_t cut = 0;  // its number, which nobody else has
  bool is_end = false;    // it ends, if it is there; the other members do not count
  // The bytes that updates may replace before they wait for an export.
  std::uint64_t bytes_max = 0;
  // How long an update waits, and how long the cut stays without a request. Then the cut ends.
  std::uint64_t wait_max_ms = 0;
  std::uint64_t idle_max_ms = 0;
};
// Rows of each variable come in order, each once. Refused with `aborted` if the cut has ended. The
// reply is an ExportReply.
struct CutExport {
  static constexpr MessageKind kKind{MessageType::export_cut, "export request of a cut"};
  std::uint64_t cut = 0;
  ExportRequest request = {};
};
struct ExportReply {
  static constexpr MessageKind kKind{MessageType::export_state, "export reply"};
  std::vector<StateOfRange> states;  // in the request's order
  std::vector<AppliedRecord> applied = {};
};
// The server takes all or nothing. Pushes that the sender has applied are not applied here again.
struct ImportRequest {
  static constexpr MessageKind kKind{MessageType::import_state, "import request"};
  std::uint64_t placement = 0;
  std::vector<StateOfRange> states;
  std::vector<AppliedRecord> applied = {};
};
struct EraseRequest {
  static constexpr MessageKind kKind{MessageType::erase, "erase request"};
  std::vector<std::uint64_t> variables;  // or snapshots
  // If not empty, one for each variable, which is a table: only the rows of these keys go.
  std::vector<at::Tensor> keys = {};
};
// The server keeps the values that these variables and tables have now, for pulls that name the
// snapshot, until the snapshot is erased. No push may come meanwhile. The reply is empty.
struct SnapshotRequest {
  static constexpr MessageKind kKind{MessageType::snapshot, "snapshot request"};
  std::uint64_t snapshot = 0;   // its number, which no variable and no other snapshot has
  std::uint64_t placement = 0;  // as in PullRequest
  std::vector<std::uint64_t> variables = {};
};
// A variable that the workers of a job without a coordinator share. They find it by its name.
struct SharedVariable {
  std::string name;
  TensorSpec spec = {};
  bool is_trainable = true;
  std::vector<Slice> slices = {};  // all of its rows, in order
};
// From the chief to the first server: these variables have their initial values now, and replace
// those of the same names. The reply is empty.
struct AnnounceRequest {
  static constexpr MessageKind kKind{MessageType::announce, "announcement of variables"};
  std::vector<SharedVariable> variables;
  // Workers may train: the chief has restored what it wants to. Never becomes false again.
  bool is_ready = false;
};
struct FindRequest {
  static constexpr MessageKind kKind{MessageType::find, "search for variables"};
  std::vector<std::string> names;  // none: all variables
};
struct FindReply {
  static constexpr MessageKind kKind{MessageType::find, "answer to a search for variables"};
  std::vector<SharedVariable> variables;  // those of the names that are known, in the same order
  bool is_ready = false;
};
// The reply to an import, to the erasure of variables, to a snapshot, or to an announcement.
struct DoneReply {
  static constexpr MessageKind kKind{MessageType::import_state, "answer to an import"};
};
struct ClosureCall {
  std::uint64_t closure_id = 0;
  std::uint32_t function_id = 0;
  std::uint64_t seed = 0;
  std::vector<std::uint64_t> resources;  // the worker's resource ids, in argument order
  std::vector<at::Tensor> inputs;
  // In an epoch: the worker's step (0, 1, …), whose elements the first resource returns, whatever
  // was drawn before. Unset: the next elements.
  std::optional<std::uint64_t> epoch_step = {};
  std::uint64_t snapshot = 0;  // as in PullRequest, for the pulls of the closure
};
struct RunBatch {
  static constexpr MessageKind kKind{MessageType::run, "run message"};
  std::uint64_t low_watermark = 0;
  std::vector<ClosureCall> closures;
};

struct ClosureEnd {
  // end_of_data: a step of an epoch for which there is no element; it had no effect.
  enum class Status : std::uint8_t { ok, failed, cancelled, needs_program, end_of_data };
  std::uint64_t closure_id = 0;
  Status status = Status::ok;
  std::vector<at::Tensor>
      tensors;                 // ok: outputs; needs_program: the elements drawn, field by field
  std::optional<Error> error;  // failed
  std::uint64_t pulled_bytes = 0;
  std::uint64_t pushed_bytes = 0;
  std::uint64_t pushes_dropped = 0;  // pushes that were answered "not applied"
  std::uint64_t rows = 0;  // ok, in an epoch: the rows of the first field of its first element
  // In an epoch: files that the pipeline has opened since the last report of files.
  std::vector<FileFingerprint> files = {};
};
struct CompletedBatch {
  static constexpr MessageKind kKind{MessageType::completed, "completed message"};
  std::vector<ClosureEnd> ends;
};

// Closures that have not started end as cancelled. One that runs may fail with cancelled_by_job, or
// end well.
struct CancelRequest {
  static constexpr MessageKind kKind{MessageType::cancel, "cancel message"};
  std::vector<std::uint64_t> closures;
};

struct PeekRequest {
  static constexpr MessageKind kKind{MessageType::peek, "peek message"};
  std::uint64_t resource = 0;
  std::uint32_t count = 2;
};
// The answer contains the fields of the first element, then of the second, …; fewer elements at the
// end of the data.
struct PeekReply {
  static constexpr MessageKind kKind{MessageType::peek, "peek reply"};
  std::uint32_t fields = 0;
  std::vector<at::Tensor> tensors;
};

// A function of an iterator's pipeline has no program for elements of these shapes
// (data/program_supply.h). The element waits on the worker.
struct ProgramRequest {
  static constexpr MessageKind kKind{MessageType::program_request, "program request"};
  std::uint64_t resource = 0;
  std::string function;
  std::vector<at::Tensor> element;  // field by field
};
// Also sent without a request, since other workers will meet such elements.
struct ProgramReply {
  static constexpr MessageKind kKind{MessageType::program_reply, "program reply"};
  std::uint64_t resource = 0;
  std::string function;
  std::vector<TensorSpec> element;
  Bytes program;
  std::optional<Error> error;  // instead of a program
};

COHORT_API Frame ping_frame();

// Both directions for one message, which messages.cpp instantiates and exports.
template <class Message>
struct COHORT_API Conversion {
  static Frame to_frame(Message message);
  static Message message_of(Frame frame);
};
template <class Message>
Frame to_frame(Message message) {
  return Conversion<Message>::to_frame(std::move(message));
}
// Throws data_loss, naming the message, for a frame of another type.
template <class Message>
Message message_of(Frame frame) {
  return Conversion<Message>::message_of(std::move(frame));
}

}  // namespace cohort::rpc
