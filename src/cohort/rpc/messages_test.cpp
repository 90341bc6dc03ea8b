// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/messages.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/testing/throws_error.h"

namespace cohort::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::throws_error;

at::Tensor number(double value) { return at::full({}, value); }

std::vector<double> numbers(const std::vector<at::Tensor>& tensors) {
  std::vector<double> values;
  for (const at::Tensor& tensor : tensors) values.push_back(tensor.item<double>());
  return values;
}

PushRequest sample_push() {
  PushRequest push{.id = {.origin = 2, .incarnation = 1ULL << 63, .number = 9, .segment = 3},
                   .low_watermark = 4,
                   .placement = 300};
  push.effects.push_back({.kind = Effect::Kind::apply,
                          .variable = 11,
                          .rule = "adam",
                          .optimizer = "adam_1",
                          .hyper = {0.1, 0.9},
                          .tensors = {number(1)}});
  push.effects.push_back({.kind = Effect::Kind::scatter_add,
                          .variable = 12,
                          .row_ids = number(2),
                          .tensors = {number(3)}});
  push.effects.push_back({.kind = Effect::Kind::assign, .variable = 13, .version = 1ULL << 40});
  return push;
}

template <class Decode>
void expect_broken_at_each_cut(Frame frame, Decode decode) {
  const Bytes whole = frame.metadata;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    frame.metadata.assign(whole.begin(), whole.begin() + std::ptrdiff_t(size));
    try {
      decode(frame);
      FAIL() << "decoded " << size << " bytes of " << whole.size();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_loss);
    }
  }
}

TEST(Messages, HelloComesBack) {
  const Hello hello =
      message_of<Hello>(to_frame(Hello{"worker:1",
                                       "job",
                                       7,
                                       ~std::uint64_t{0},
                                       PayloadChecksums::always,
                                       {.host = 1, .local = ~std::uint64_t{0}, .remote = 3}}));
  EXPECT_EQ(hello.task, "worker:1");
  EXPECT_EQ(hello.job_id, "job");
  EXPECT_EQ(hello.coordinator_incarnation, 7U);
  EXPECT_EQ(hello.server_incarnation, ~std::uint64_t{0});
  EXPECT_EQ(hello.payload_checksums, PayloadChecksums::always);
  EXPECT_EQ(hello.host.host, 1U);
  EXPECT_EQ(hello.host.local, ~std::uint64_t{0});
  EXPECT_EQ(hello.host.remote, 3U);
  EXPECT_TRUE(message_of<HelloReply>(to_frame(HelloReply{true})).has_payload_sums);
}

TEST(Messages, PullComesBack) {
  EXPECT_THAT(message_of<PullRequest>(to_frame(PullRequest{{3, 1, 1ULL << 60}})).variables,
              ElementsAre(3, 1, 1ULL << 60));
}

ImportRequest sample_import() {
  return {.placement = 300,
          .states = {{.range = {.variable = 7, .first_row = 3, .rows = 2},
                      .version = 1ULL << 40,
                      .value = number(1),
                      .slots = {{"adam_1", "adam", {number(2), number(3)}}}}},
          .applied = {{.origin = 2,
                       .incarnation = 1ULL << 63,
                       .low_watermark = 4,
                       .applied = {{5, 0}, {6, 1}},
                       .earlier = {3}}}};
}

TEST(Messages, StatesComeBack) {
  const ImportRequest back = message_of<ImportRequest>(to_frame(sample_import()));
  EXPECT_EQ(back.placement, 300U);
  ASSERT_EQ(back.states.size(), 1U);
  const StateOfRange& state = back.states[0];
  EXPECT_EQ(state.range.variable, 7U);
  EXPECT_EQ(state.range.first_row, 3);
  EXPECT_EQ(state.range.rows, 2);
  EXPECT_EQ(state.version, 1ULL << 40);
  EXPECT_EQ(state.value.item<int>(), 1);
  ASSERT_EQ(state.slots.size(), 1U);
  EXPECT_EQ(state.slots[0].optimizer, "adam_1");
  EXPECT_EQ(state.slots[0].rule, "adam");
  EXPECT_THAT(numbers(state.slots[0].tensors), ElementsAre(2, 3));
  ASSERT_EQ(back.applied.size(), 1U);
  EXPECT_EQ(back.applied[0].origin, 2U);
  EXPECT_EQ(back.applied[0].incarnation, 1ULL << 63);
  EXPECT_EQ(back.applied[0].low_watermark, 4U);
  EXPECT_THAT(back.applied[0].earlier, ElementsAre(3));
  ASSERT_EQ(back.applied[0].applied.size(), 2U);
  EXPECT_EQ(back.applied[0].applied[1].number, 6U);
  EXPECT_EQ(back.applied[0].applied[1].segment, 1U);
  expect_broken_at_each_cut(to_frame(sample_import()),
                            [](const Frame& frame) { message_of<ImportRequest>(frame); });
}

TEST(Messages, RequestsOfStatesComeBack) {
  const ExportRequest back = message_of<ExportRequest>(
      to_frame(ExportRequest{.placement = 9,
                             .ranges = {{7, 3, 2}, {.variable = 8, .is_of_counts = true}},
                             .has_slots = false,
                             .has_applied = true}));
  EXPECT_EQ(back.placement, 9U);
  ASSERT_EQ(back.ranges.size(), 2U);
  EXPECT_EQ(back.ranges[1].rows, Slice::kAllRows);
  EXPECT_FALSE(back.ranges[0].is_of_counts);
  EXPECT_TRUE(back.ranges[1].is_of_counts);
  EXPECT_FALSE(back.has_slots);
  EXPECT_TRUE(back.has_applied);
  const ImportRequest sample = sample_import();
  const ExportReply reply = message_of<ExportReply>(
      to_frame(ExportReply{.states = sample.states, .applied = sample.applied}));
  EXPECT_EQ(reply.states.size(), 1U);
  EXPECT_EQ(reply.applied.size(), 1U);
  EXPECT_THAT(message_of<EraseRequest>(to_frame(EraseRequest{{3, 4}})).variables,
              ElementsAre(3, 4));
  const EraseRequest rows = message_of<EraseRequest>(to_frame(EraseRequest{{3}, {number(5)}}));
  EXPECT_THAT(numbers(rows.keys), ElementsAre(5));
  const Frame wrong = to_frame(EraseRequest{{3, 4}, {number(5)}});
  EXPECT_THAT([&] { message_of<EraseRequest>(wrong); },
              testing::throws_error(ErrorCode::data_loss, "expected keys of 2 tables, got of 1"));
}

TEST(Messages, CutsComeBack) {
  const CutRequest begin{
      .cut = 1ULL << 63, .bytes_max = 300, .wait_max_ms = 4000, .idle_max_ms = 50'000};
  const CutRequest back = message_of<CutRequest>(to_frame(begin));
  EXPECT_EQ(back.cut, 1ULL << 63);
  EXPECT_FALSE(back.is_end);
  EXPECT_EQ(back.bytes_max, 300U);
  EXPECT_EQ(back.wait_max_ms, 4000U);
  EXPECT_EQ(back.idle_max_ms, 50'000U);
  EXPECT_TRUE(message_of<CutRequest>(to_frame(CutRequest{.cut = 1, .is_end = true})).is_end);
  const CutExport rows = message_of<CutExport>(
      to_frame(CutExport{5, {.placement = 9, .ranges = {{7, 3, 2}}, .has_slots = false}}));
  EXPECT_EQ(rows.cut, 5U);
  EXPECT_EQ(rows.request.placement, 9U);
  EXPECT_EQ(rows.request.ranges.at(0).first_row, 3);
  EXPECT_FALSE(rows.request.has_slots);
  expect_broken_at_each_cut(to_frame(begin),
                            [](const Frame& frame) { message_of<CutRequest>(frame); });
}

TEST(Messages, SnapshotsComeBack) {
  const SnapshotRequest begin{.snapshot = 300, .placement = 9, .variables = {3, 4}};
  const SnapshotRequest back = message_of<SnapshotRequest>(to_frame(begin));
  EXPECT_EQ(back.snapshot, 300U);
  EXPECT_EQ(back.placement, 9U);
  EXPECT_THAT(back.variables, ElementsAre(3, 4));
  expect_broken_at_each_cut(to_frame(begin), message_of<SnapshotRequest>);
  EXPECT_EQ(message_of<PullRequest>(to_frame(PullRequest{.snapshot = 300})).snapshot, 300U);
}

TEST(Messages, APullMayWantVersions) {
  EXPECT_FALSE(message_of<PullRequest>(to_frame(PullRequest{{3}})).wants_versions);
  EXPECT_TRUE(message_of<PullRequest>(to_frame(PullRequest{{3}, true})).wants_versions);
}

TEST(Messages, APullMayWantRows) {
  const Frame frame = to_frame(PullRequest{.variables = {3, 4}, .row_ids = {number(5)}});
  EXPECT_THAT(numbers(message_of<PullRequest>(frame).row_ids), ElementsAre(5));
  const Frame of_three =
      to_frame(PullRequest{.variables = {3, 4}, .row_ids = {number(5), number(6), number(7)}});
  EXPECT_THAT([&] { message_of<PullRequest>(of_three); },
              throws_error(ErrorCode::data_loss, "expected rows of at most 2 variables, got 3"));
}

TEST(Messages, APullMayNameTheVersionsThatItsSenderHas) {
  const PullRequest pull{.variables = {3, 4}, .wants_versions = true, .known = {0, 1ULL << 60}};
  const PullRequest back = message_of<PullRequest>(to_frame(pull));
  EXPECT_TRUE(back.has(1, 1ULL << 60));
  EXPECT_FALSE(back.has(1, 2));
  EXPECT_FALSE(back.has(0, 0)) << "it has no value";
  EXPECT_FALSE(PullRequest{{3}}.has(0, 2));
  for (PullRequest broken : {PullRequest{.variables = {3, 4}, .wants_versions = true, .known = {1}},
                             PullRequest{.variables = {3}, .known = {1}}}) {
    EXPECT_THAT([&] { message_of<PullRequest>(to_frame(broken)); },
                throws_error(ErrorCode::data_loss, "broken pull message"));
  }
}

TEST(Messages, PullReplyComesBackWithAndWithoutVersions) {
  const PullReply plain = message_of<PullReply>(to_frame(PullReply{{number(1), number(2)}, {}}));
  EXPECT_THAT(numbers(plain.values), ElementsAre(1, 2));
  EXPECT_TRUE(plain.versions.empty());
  const Frame frame = to_frame(PullReply{{number(1), number(2)}, {7, 1ULL << 60}});
  EXPECT_THAT(message_of<PullReply>(frame).versions, ElementsAre(7, 1ULL << 60));
  Frame short_of_one = frame;
  short_of_one.tensors.pop_back();
  EXPECT_THAT([&] { message_of<PullReply>(short_of_one); },
              throws_error(ErrorCode::data_loss, "broken pull reply"));
}

TEST(Messages, PushComesBackWithEachEffectsTensors) {
  const PushRequest push = message_of<PushRequest>(to_frame(sample_push()));
  EXPECT_EQ(push.id.origin, 2U);
  EXPECT_EQ(push.id.incarnation, 1ULL << 63);
  EXPECT_EQ(push.id.number, 9U);
  EXPECT_EQ(push.low_watermark, 4U);
  EXPECT_EQ(push.placement, 300U);
  EXPECT_EQ(push.id.segment, 3U);
  EXPECT_EQ(push.effects.at(2).version, 1ULL << 40);
  ASSERT_EQ(push.effects.size(), 3U);
  EXPECT_EQ(push.effects[0].kind, Effect::Kind::apply);
  EXPECT_EQ(push.effects[0].variable, 11U);
  EXPECT_EQ(push.effects[0].rule, "adam");
  EXPECT_EQ(push.effects[0].optimizer, "adam_1");
  EXPECT_THAT(push.effects[0].hyper, ElementsAre(0.1, 0.9));
  EXPECT_THAT(numbers(push.effects[0].tensors), ElementsAre(1));
  EXPECT_FALSE(push.effects[0].row_ids.defined());
  EXPECT_THAT(numbers({push.effects[1].row_ids}), ElementsAre(2));
  EXPECT_THAT(numbers(push.effects[1].tensors), ElementsAre(3));
  EXPECT_TRUE(push.effects[2].tensors.empty());
}

TEST(Messages, EachKindOfEffectComesBack) {
  for (const auto kind :
       {Effect::Kind::apply, Effect::Kind::assign, Effect::Kind::assign_add,
        Effect::Kind::assign_sub, Effect::Kind::scatter_add, Effect::Kind::merge_average}) {
    PushRequest push;
    push.effects.push_back({.kind = kind});
    EXPECT_EQ(message_of<PushRequest>(to_frame(std::move(push))).effects.at(0).kind, kind);
  }
}

TEST(Messages, APushMayHaveAPullAndItsReplyTheValues) {
  PushRequest push = sample_push();
  push.pull = PullRequest{.variables = {3}, .row_ids = {number(5)}};
  const PushRequest back = message_of<PushRequest>(to_frame(std::move(push)));
  EXPECT_THAT(back.pull.value().variables, ElementsAre(3));
  EXPECT_THAT(numbers(back.pull.value().row_ids), ElementsAre(5));
  const PushReply reply =
      message_of<PushReply>(to_frame(PushReply{true, PullReply{{number(1)}, {7}}}));
  EXPECT_THAT(numbers(reply.pulled.value().values), ElementsAre(1));
  EXPECT_THAT(reply.pulled.value().versions, ElementsAre(7));
}

TEST(Messages, PushReplyComesBack) {
  EXPECT_TRUE(message_of<PushReply>(to_frame(PushReply{true})).was_applied);
  EXPECT_FALSE(message_of<PushReply>(to_frame(PushReply{false})).was_applied);
}

TEST(Messages, RunComesBackWithEachClosuresInputs) {
  RunBatch batch{.low_watermark = 5, .closures = {}};
  batch.closures.push_back({.closure_id = 6,
                            .function_id = 2,
                            .seed = ~0ULL,
                            .resources = {8, 9},
                            .inputs = {number(1), number(2)}});
  batch.closures.push_back({.closure_id = 7,
                            .function_id = 0xffffffff,
                            .inputs = {number(3)},
                            .epoch_step = 0,
                            .snapshot = 300});
  const RunBatch back = message_of<RunBatch>(to_frame(std::move(batch)));
  EXPECT_EQ(back.low_watermark, 5U);
  ASSERT_EQ(back.closures.size(), 2U);
  EXPECT_EQ(back.closures[0].closure_id, 6U);
  EXPECT_EQ(back.closures[0].function_id, 2U);
  EXPECT_EQ(back.closures[0].seed, ~0ULL);
  EXPECT_THAT(back.closures[0].resources, ElementsAre(8, 9));
  EXPECT_THAT(numbers(back.closures[0].inputs), ElementsAre(1, 2));
  EXPECT_EQ(back.closures[1].function_id, 0xffffffffU);
  EXPECT_THAT(numbers(back.closures[1].inputs), ElementsAre(3));
  EXPECT_EQ(back.closures[0].epoch_step, std::nullopt);
  EXPECT_EQ(back.closures[1].epoch_step, 0U);
  EXPECT_EQ(back.closures[0].snapshot, 0U);
  EXPECT_EQ(back.closures[1].snapshot, 300U);
}

std::vector<FileFingerprint> sample_files() {
  return {{.path = "a.csv", .size_bytes = 5, .modified_ns = -3, .checksum = 0xffffffffU},
          {.path = "b.csv", .is_missing = true}};
}

TEST(Messages, CompletedComesBackWithOutputsAndErrors) {
  CompletedBatch batch;
  batch.ends.push_back({.closure_id = 1,
                        .tensors = {number(4)},
                        .pulled_bytes = 10,
                        .pushed_bytes = 20,
                        .rows = 7,
                        .files = sample_files()});
  batch.ends.push_back(
      {.closure_id = 2,
       .status = ClosureEnd::Status::failed,
       .error =
           Error(ErrorCode::out_of_range, "end of data").at("worker:0", 5).during("closure 2")});
  batch.ends.push_back({.closure_id = 3,
                        .status = ClosureEnd::Status::needs_program,
                        .tensors = {number(5), number(6)}});
  const CompletedBatch back = message_of<CompletedBatch>(to_frame(std::move(batch)));
  ASSERT_EQ(back.ends.size(), 3U);
  EXPECT_THAT(numbers(back.ends[0].tensors), ElementsAre(4));
  EXPECT_EQ(back.ends[0].pulled_bytes, 10U);
  EXPECT_EQ(back.ends[0].pushed_bytes, 20U);
  EXPECT_EQ(back.ends[0].rows, 7U);
  EXPECT_EQ(back.ends[0].files, sample_files());
  EXPECT_EQ(back.ends[1].status, ClosureEnd::Status::failed);
  EXPECT_EQ(back.ends[1].error->code(), ErrorCode::out_of_range);
  EXPECT_EQ(back.ends[1].error->origin(), "worker:0");
  EXPECT_FALSE(back.ends[2].error.has_value());
  EXPECT_THAT(numbers(back.ends[2].tensors), ElementsAre(5, 6));
}

TEST(Messages, PeekComesBack) {
  const PeekRequest request =
      message_of<PeekRequest>(to_frame(PeekRequest{.resource = 4, .count = 3}));
  EXPECT_EQ(request.resource, 4U);
  EXPECT_EQ(request.count, 3U);
  const PeekReply reply =
      message_of<PeekReply>(to_frame(PeekReply{.fields = 2, .tensors = {number(1), number(2)}}));
  EXPECT_EQ(reply.fields, 2U);
  EXPECT_THAT(numbers(reply.tensors), ElementsAre(1, 2));
}

TEST(Messages, EachCutOfAMessageIsDataLoss) {
  expect_broken_at_each_cut(to_frame(Hello{"a", "b", 1, 2}), message_of<Hello>);
  expect_broken_at_each_cut(to_frame(HelloReply{true}), message_of<HelloReply>);
  expect_broken_at_each_cut(to_frame(PullRequest{{1, 300}}), message_of<PullRequest>);
  expect_broken_at_each_cut(to_frame(sample_push()), message_of<PushRequest>);
  expect_broken_at_each_cut(to_frame(PushReply{}), message_of<PushReply>);
  expect_broken_at_each_cut(
      to_frame(RunBatch{.closures = {{.resources = {5}, .inputs = {number(1)}}}}),
      message_of<RunBatch>);
  expect_broken_at_each_cut(
      to_frame(CompletedBatch{.ends = {{.error = Error(ErrorCode::internal, "x")}}}),
      message_of<CompletedBatch>);
  expect_broken_at_each_cut(to_frame(PeekRequest{}), message_of<PeekRequest>);
  expect_broken_at_each_cut(to_frame(PeekReply{}), message_of<PeekReply>);
}

TEST(Messages, AMissingOrExtraTensorIsDataLoss) {
  Frame frame = to_frame(sample_push());
  frame.tensors.push_back(number(0));
  EXPECT_THAT([&] { message_of<PushRequest>(frame); },
              throws_error(ErrorCode::data_loss, "expected 3 tensors, got 4"));
  frame.tensors.resize(2);
  EXPECT_THAT([&] { message_of<PushRequest>(frame); },
              throws_error(ErrorCode::data_loss, "expected 3 tensors, got 2"));
}

TEST(Messages, APeekReplyHasWholeElements) {
  for (const std::uint32_t fields : {2U, 0U}) {
    PeekReply reply;
    reply.fields = fields;
    reply.tensors = {number(1)};
    EXPECT_THAT([&] { message_of<PeekReply>(to_frame(std::move(reply))); },
                throws_error(ErrorCode::data_loss, "broken peek reply"));
  }
}

TEST(Messages, AnotherTypeIsNamed) {
  try {
    message_of<PushRequest>(to_frame(PullRequest{}));
    FAIL() << "decoded";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(),
                HasSubstr("expected a push message (type 3), got a frame of type 2"));
  }
}

TEST(Frames, AnErrorComesBackWhole) {
  const Error sent = Error(ErrorCode::aborted, "text", ErrorCause::handle_lost)
                         .at("ps:1", 1ULL << 63)
                         .during("inner")
                         .during("outer");
  const Frame frame = error_frame(12, sent);
  EXPECT_EQ(frame.role, Frame::Role::error);
  EXPECT_EQ(frame.id, 12U);
  const Error back = error_of(frame);
  EXPECT_EQ(back.code(), ErrorCode::aborted);
  EXPECT_EQ(back.cause(), ErrorCause::handle_lost);
  EXPECT_EQ(back.origin(), "ps:1");
  EXPECT_EQ(back.incarnation(), 1ULL << 63);
  EXPECT_THAT(back.context(), ElementsAre("inner", "outer"));
  EXPECT_STREQ(back.what(), sent.what());
}

TEST(Messages, ProgramRequestsAndTheirRepliesComeBack) {
  const ProgramRequest request = message_of<ProgramRequest>(to_frame(
      ProgramRequest{.resource = 7, .function = "4.0", .element = {number(1), number(2)}}));
  EXPECT_EQ(request.resource, 7U);
  EXPECT_EQ(request.function, "4.0");
  EXPECT_THAT(numbers(request.element), ElementsAre(1, 2));
  const std::vector<TensorSpec> element = {{at::kLong, {{5, 0}}},
                                           {at::kFloat, std::vector<std::int64_t>{}}};
  const Frame frame = to_frame(ProgramReply{
      .resource = 7, .function = "4", .element = element, .program = Bytes(3, std::byte{9})});
  const ProgramReply reply = message_of<ProgramReply>(frame);
  EXPECT_EQ(reply.resource, 7U);
  EXPECT_EQ(reply.function, "4");
  EXPECT_EQ(reply.element, element);
  EXPECT_EQ(reply.program, Bytes(3, std::byte{9}));
  EXPECT_FALSE(reply.error);
  expect_broken_at_each_cut(frame, message_of<ProgramReply>);
  const ProgramReply refused = message_of<ProgramReply>(to_frame(ProgramReply{
      .error = Error(ErrorCode::resource_exhausted, "too many", ErrorCause::closure_input)}));
  ASSERT_TRUE(refused.error);
  EXPECT_EQ(refused.error->cause(), ErrorCause::closure_input);
}

}  // namespace
}  // namespace cohort::rpc
