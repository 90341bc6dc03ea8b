// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/writing/cut_writer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "cohort/checkpoint_files/folder_reader.h"
#include "cohort/checkpoint_files/folder_writer.h"
#include "cohort/checkpoint_files/share_writer.h"
#include "cohort/core/clock.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"

namespace cohort::server {
namespace {

using testing::throws_error;

constexpr std::uint64_t kNumberOfCut = 5;

// A server with one variable, of which it has rows 2 to 6, and a cut.
class CutWriterTest : public ::testing::Test {
 protected:
  CutWriterTest() {
    store_.create({{.id = 1, .name = "w", .spec = {at::kFloat, {{5, 2}}}}});
    store_.take_cut(
        {.cut = kNumberOfCut, .bytes_max = 1 << 20, .wait_max_ms = 60'000, .idle_max_ms = 60'000});
  }
  rpc::CutWrite request() const {
    return {.cut = kNumberOfCut,
            .folder = proof_.folder,
            .proof_name = proof_.name,
            .proof_text = proof_.text,
            .prefix = "ps-0-",
            .header_room = 4096,
            .rows = {{.stored = 1,
                      .name = "w",
                      .spec = {at::kFloat, {{7, 2}}},
                      .first_row = 2,
                      .count = 5}}};
  }
  rpc::CutWritten await_end() {
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (true) {
      rpc::CutWritten told = writer_.handle({.cut = kNumberOfCut});
      if (told.is_done || deadline.has_expired()) return told;
      std::this_thread::yield();
    }
  }

  const testing::TemporaryFolder folder_;
  checkpoint::FolderWriter files_{folder_.file("c"), 4096};
  const checkpoint::FolderProof proof_ = checkpoint::make_proof(files_.partial_path());
  ParameterStore store_;
  CutWriter writer_{store_, {folder_.file("")}, "ps:0"};
};

TEST_F(CutWriterTest, WritesItsRows) {
  EXPECT_FALSE(writer_.handle(request()).is_done);
  const rpc::CutWritten told = await_end();
  ASSERT_TRUE(told.is_done);
  files_.add_share(told.share, "ps:0");
  checkpoint::ShareWriter rest(proof_, "ps:1", "ps-1-", 4096);
  rest.set_rows(2);
  rest.write("w", {at::kFloat, {{7, 2}}}, 0, at::ones({2, 2}));
  files_.add_share(rest.finish({}), "ps:1");
  files_.commit({});
  const at::Tensor whole = checkpoint::FolderReader(folder_.file("c")).read("w");
  EXPECT_TRUE(at::equal(whole, at::cat({at::ones({2, 2}), at::zeros({5, 2})})));
  EXPECT_THAT([&] { writer_.handle({.cut = kNumberOfCut}); },
              throws_error(ErrorCode::not_found, "that ps:0 writes"));
}

TEST_F(CutWriterTest, WritesOnlyWhereItMay) {
  const testing::TemporaryFolder elsewhere;
  rpc::CutWrite outside = request();
  outside.folder = elsewhere.file("");
  EXPECT_THAT([&] { writer_.handle(outside); },
              throws_error(ErrorCode::permission_denied, "--data DIR"));
  outside.folder = folder_.file("") + "/../elsewhere";
  EXPECT_THAT([&] { writer_.handle(outside); },
              throws_error(ErrorCode::permission_denied, "--data DIR"));
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere.file("")));
}

// Regression: only the folder was looked at, and these become parts of paths.
TEST_F(CutWriterTest, TakesNoPathForAPartOfAName) {
  const testing::TemporaryFolder elsewhere;
  for (const std::string& text : {"../" + elsewhere.file("x-"), std::string("a/b"),
                                  std::string(".."), std::string("a\0b", 3)}) {
    rpc::CutWrite prefix = request();
    prefix.prefix = text;
    EXPECT_THAT([&] { writer_.handle(prefix); },
                throws_error(ErrorCode::permission_denied, "expected a prefix that is part"));
    rpc::CutWrite proof = request();
    proof.proof_name = text;
    EXPECT_THAT([&] { writer_.handle(proof); },
                throws_error(ErrorCode::permission_denied, "expected a proof_name that is part"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere.file("")));
  EXPECT_FALSE(writer_.handle(request()).is_done) << "a good one after them";
}

// Regression: they were used unseen.
TEST_F(CutWriterTest, NeedsTheSizesOfAllRows) {
  for (const TensorSpec& unknown :
       {TensorSpec{at::kFloat, {}}, TensorSpec{at::kFloat, {{7, -1}}}}) {
    rpc::CutWrite bad = request();
    bad.rows[0].spec = unknown;
    EXPECT_THAT([&] { writer_.handle(bad); },
                throws_error(ErrorCode::invalid_argument, unknown.to_string()));
  }
}

TEST_F(CutWriterTest, WritesOnlyIntoTheFolderOfItsCoordinator) {
  rpc::CutWrite other = request();
  other.proof_text = "another text";
  EXPECT_THAT([&] { writer_.handle(other); },
              throws_error(ErrorCode::failed_precondition, "expected ps:0 to see the folder"));
}

TEST_F(CutWriterTest, TellsTheErrorOfItsThread) {
  store_.take_cut({.cut = kNumberOfCut, .is_end = true});
  writer_.handle(request());
  EXPECT_THAT([&] { await_end(); }, throws_error(ErrorCode::aborted, "it was ended"));
  EXPECT_TRUE(writer_.handle({.cut = kNumberOfCut, .is_end = true}).is_done);
  EXPECT_THAT([&] { await_end(); }, throws_error(ErrorCode::not_found, "that ps:0 writes"));
}

}  // namespace
}  // namespace cohort::server
