// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cohort/checkpoint_files/folder_writer.h"
#include "cohort/checkpoint_files/kept_checkpoints.h"
#include "cohort/cli/commands.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/variable/saved_values.h"

namespace cohort::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class CheckpointCommandTest : public ::testing::Test {
 protected:
  struct Outcome {
    int exit_code;
    std::string out, err;
  };
  static Outcome run_words(const std::vector<std::string>& words) {
    std::vector<const char*> all{"cohort", "checkpoint"};
    for (const std::string& word : words) all.push_back(word.c_str());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int exit_code = run(static_cast<int>(all.size()), all.data());
    std::string out = ::testing::internal::GetCapturedStdout();
    return {exit_code, std::move(out), ::testing::internal::GetCapturedStderr()};
  }
  // A checkpoint with two variables, whose first one has this number.
  std::string save(std::int64_t step, double number) {
    const checkpoint::KeptCheckpoints kept(folder_.file("m"));
    checkpoint::FolderWriter folder(kept.path_of(step), 100);
    const at::Tensor weight = at::full({2, 3}, number);
    const at::Tensor ids = at::arange(4, at::kLong);
    folder.write("model/weight", weight);
    folder.write("model/ids", ids);
    folder.commit({.step = step,
                   .strategy = "MirroredStrategy",
                   .variables = {{.name = "model/weight", .spec = TensorSpec::of(weight)},
                                 {.name = "model/ids", .spec = TensorSpec::of(ids)}},
                   .values = {{"epoch", std::to_string(step)}}});
    kept.set_latest(step);
    return kept.path_of(step);
  }
  const testing::TemporaryFolder folder_;
  const std::string all_ = folder_.file("m");
};

TEST_F(CheckpointCommandTest, ListsAndShows) {
  save(1, 1.5);
  save(20, 2.5);
  const Outcome list = run_words({"list", all_});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_THAT(list.out, HasSubstr("m/step-1  step 1"));
  EXPECT_THAT(list.out, HasSubstr("m/step-20  step 20"));
  const Json listed = Json::parse(run_words({"list", all_, "--json"}).out);
  EXPECT_EQ(listed["checkpoints"][1]["bytes"], 6 * 4 + 4 * 8);

  const Outcome show = run_words({"show", all_});
  EXPECT_THAT(show.out, HasSubstr("model/weight  float32[2, 3]  float32.safetensors"));
  EXPECT_THAT(show.out, HasSubstr("value: epoch = 20"));
  const Json shown = Json::parse(run_words({"show", all_ + "/step-1", "--json"}).out);
  EXPECT_EQ(shown["values"]["epoch"], 1);
  EXPECT_EQ(shown["tensors"][0]["name"], "model/ids");
}

TEST_F(CheckpointCommandTest, Compares) {
  const std::string first = save(1, 1.5);
  const std::string second = save(2, 2.5);
  EXPECT_EQ(run_words({"diff", first, first}).exit_code, 0);
  const Outcome diff = run_words({"diff", first, second});
  EXPECT_EQ(diff.exit_code, 1);
  EXPECT_EQ(diff.out, "model/weight: 6 of 6 elements\nepoch: 1 and 2\n");
}

TEST_F(CheckpointCommandTest, VerifiesEveryByte) {
  const std::string path = save(1, 1.5);
  EXPECT_EQ(run_words({"verify", all_}).exit_code, 0);
  std::fstream file(path + "/int64.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end).put(1).flush();
  const Outcome damaged = run_words({"verify", all_});
  EXPECT_EQ(damaged.exit_code, 64);
  EXPECT_THAT(damaged.err, HasSubstr("int64.safetensors"));
}

TEST_F(CheckpointCommandTest, ExportsValues) {
  save(1, 1.5);
  const std::string file = folder_.file("weights.safetensors");
  EXPECT_EQ(run_words({"export", all_, file}).exit_code, 0);
  EXPECT_EQ(SavedValues(file).keys(), (std::vector<std::string>{"ids", "weight"}));
  EXPECT_TRUE(at::equal(SavedValues(file).value("weight"), at::full({2, 3}, 1.5)));
  EXPECT_EQ(run_words({"export", all_, file, "--prefix", ""}).exit_code, 0);
  EXPECT_EQ(SavedValues(file).keys(), (std::vector<std::string>{"model/ids", "model/weight"}));
}

TEST_F(CheckpointCommandTest, WhatIsNoCheckpointIsNamed) {
  const Outcome none = run_words({"show", folder_.file("none")});
  EXPECT_EQ(none.exit_code, 64);
  EXPECT_THAT(none.err, HasSubstr("which does not exist"));
  EXPECT_EQ(run_words({"list"}).exit_code, 64);
  EXPECT_THAT(run_words({"--help"}).out, HasSubstr("export"));
}

}  // namespace
}  // namespace cohort::cli
