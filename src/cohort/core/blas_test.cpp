// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/blas.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "cohort/core/log.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> warnings_for(const std::string& file) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  warn_of_slow_blas(file);
  set_log_sink(nullptr);
  return lines;
}

TEST(Blas, TheReferenceIsKnownByItsName) {
  EXPECT_TRUE(is_reference_blas("/usr/lib/x86_64-linux-gnu/blas/libblas.so.3.11.0"));
  EXPECT_TRUE(is_reference_blas("/usr/lib64/libblas.so.3"));
}

TEST(Blas, OthersUnderItsNameAreNotTheReference) {
  for (const char* file :
       {"/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3",
        "/usr/lib/x86_64-linux-gnu/atlas/libblas.so.3.10.3",
        "/usr/lib/x86_64-linux-gnu/blis-openmp/libblas.so.3", "/opt/libtorch/lib/libtorch_cpu.so",
        "/usr/lib/x86_64-linux-gnu/libmkl_rt.so", "/usr/lib64/libopenblasp-r0.3.21.so", ""}) {
    EXPECT_FALSE(is_reference_blas(file)) << file;
  }
}

TEST(Blas, TheWarningNamesTheFileAndTheRemedy) {
  EXPECT_THAT(warnings_for("/x/blas/libblas.so.3"),
              ElementsAre(AllOf(HasSubstr("/x/blas/libblas.so.3"),
                                HasSubstr("install libopenblas0-pthread"))));
  EXPECT_THAT(warnings_for("/x/openblas-pthread/libblas.so.3"), IsEmpty());
}

TEST(Blas, TheLoadedOneIsFoundBehindItsLinks) {
  EXPECT_EQ(at::mm(at::ones({2, 2}), at::ones({2, 2})).sum().item<float>(), 8);
  const std::string file = loaded_blas();
  ASSERT_NE(file, "");
  EXPECT_EQ(std::filesystem::canonical(file), file);
}

}  // namespace
}  // namespace cohort
