// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint_files/share_writer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cohort/checkpoint_files/folder_reader.h"
#include "cohort/checkpoint_files/folder_writer.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"

namespace cohort::checkpoint {
namespace {

using testing::throws_error;

class SharesOfACheckpoint : public ::testing::Test {
 protected:
  // The rows of `whole_` that a writer has, as one part each.
  std::string write_rows(const std::string& writer, const FolderProof& proof,
                         const std::vector<std::pair<std::int64_t, std::int64_t>>& parts) {
    ShareWriter share(proof, writer, writer + "-", 4096);
    std::int64_t rows = 0;
    for (const auto& [first, count] : parts) rows += count;
    share.set_rows(rows);
    for (const auto& [first, count] : parts)
      share.write("w", TensorSpec::of(whole_), first, whole_.narrow(0, first, count).clone());
    return share.finish({{.name = "w", .spec = TensorSpec::of(whole_)}});
  }
  // A table's rows, of which each writer has some.
  static std::string write_table(const std::string& writer, const FolderProof& proof,
                                 const at::Tensor& keys) {
    ShareWriter share(proof, writer, writer + "-", 4096);
    const at::Tensor none = at::empty({0}, at::kLong);
    for (const char* name : {"t@counted-keys", "t@counts"}) share.append(name, none);
    share.append("t@keys", keys);
    share.append("t", keys.to(at::kFloat).view({-1, 1}));
    return share.finish({{.name = "t",
                          .spec = {at::kFloat, {{0, 1}}},
                          .keys = "t@keys",
                          .counted_keys = "t@counted-keys",
                          .counts = "t@counts"}});
  }
  void commit(const std::vector<std::pair<std::string, std::string>>& shares) {
    for (const auto& [writer, text] : shares) files_.add_share(text, writer);
    files_.commit({.step = 3});
  }

  const testing::TemporaryFolder folder_;
  const at::Tensor whole_ = at::randn({10, 3});
  FolderWriter files_{folder_.file("c"), 4096};
  const FolderProof proof_ = make_proof(files_.partial_path());
};

// One writer has two parts of the variable that are not neighbours.
TEST_F(SharesOfACheckpoint, AreOneTensor) {
  commit({{"ps-1", write_rows("ps-1", proof_, {{4, 3}})},
          {"ps-0", write_rows("ps-0", proof_, {{0, 4}, {7, 3}})}});
  FolderReader reader(folder_.file("c"));
  EXPECT_TRUE(at::equal(reader.read("w"), whole_));
  EXPECT_TRUE(at::equal(reader.read_part("w", 2), whole_.narrow(0, 7, 3)));
  reader.verify();
}

TEST_F(SharesOfACheckpoint, OfATableFollowEachOther) {
  const at::Tensor few = at::arange(2), none = at::empty({0}, at::kLong), many = at::arange(5, 9);
  commit({{"ps-0", write_table("ps-0", proof_, none)},
          {"ps-1", write_table("ps-1", proof_, few)},
          {"ps-2", write_table("ps-2", proof_, many)}});
  FolderReader reader(folder_.file("c"));
  EXPECT_TRUE(at::equal(reader.read("t@keys"), at::cat({few, many})));
  EXPECT_TRUE(at::equal(reader.read("t").view({-1}), at::cat({few, many}).to(at::kFloat)));
  EXPECT_EQ(reader.read("t@counts").numel(), 0);
  reader.verify();
}

TEST_F(SharesOfACheckpoint, MustBeAllRows) {
  EXPECT_THAT(
      [&] {
        commit({{"ps-0", write_rows("ps-0", proof_, {{0, 4}, {7, 3}})}});
      },
      throws_error(ErrorCode::data_loss, "row of tensor 'w' from one writer"));
}

TEST_F(SharesOfACheckpoint, MustHaveEachRowOnce) {
  EXPECT_THAT(
      [&] {
        commit({{"ps-0", write_rows("ps-0", proof_, {{0, 10}})},
                {"ps-1", write_rows("ps-1", proof_, {{0, 10}})}});
      },
      throws_error(ErrorCode::data_loss, "row of tensor 'w' from one writer"));
}

TEST_F(SharesOfACheckpoint, MustBeInTheSameFolder) {
  const std::string text = write_rows("ps-0", proof_, {{0, 10}});
  std::filesystem::remove(files_.partial_path() + "/ps-0-float32.safetensors");
  EXPECT_THAT(
      [&] {
        commit({{"ps-0", text}});
      },
      throws_error(ErrorCode::failed_precondition,
                   "file 'ps-0-float32.safetensors' of ps-0 "
                   "in"));
}

TEST_F(SharesOfACheckpoint, OfAnotherShapeAreRefused) {
  const std::string text = write_rows("ps-0", proof_, {{0, 10}});
  ShareWriter other(proof_, "ps-1", "ps-1-", 4096);
  other.set_rows(10);
  other.write("w", at::randn({10, 4}));
  const std::string others = other.finish({});
  EXPECT_THAT(
      [&] {
        commit({{"ps-0", text}, {"ps-1", others}});
      },
      throws_error(ErrorCode::data_loss, "the share of ps-1 to fit"));
  EXPECT_THAT([&] { files_.add_share("{}", "ps-2"); },
              throws_error(ErrorCode::data_loss, "the share of ps-2"));
}

TEST_F(SharesOfACheckpoint, NeedAFolderThatBothSee) {
  FolderProof elsewhere = proof_;
  elsewhere.folder = folder_.file("elsewhere");
  EXPECT_THAT(
      [&] {
        write_rows("ps:1", elsewhere, {{0, 10}});
      },
      throws_error(ErrorCode::failed_precondition, "expected ps:1 to see the folder"));
  std::filesystem::create_directory(elsewhere.folder);
  FolderProof same_name = make_proof(elsewhere.folder);
  same_name.text = proof_.text;
  EXPECT_THAT(
      [&] {
        write_rows("ps:1", same_name, {{0, 10}});
      },
      throws_error(ErrorCode::failed_precondition, "got another file"));
}

}  // namespace
}  // namespace cohort::checkpoint
