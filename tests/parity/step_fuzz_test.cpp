// SPDX-License-Identifier: Apache-2.0
// Random steps that are traced and run on a cluster have the same bits as eager runs on local
// variables, or are refused with a reason.
//
//   COHORT_FUZZ_PROGRAMS=2000 build/dev/tests/step_fuzz_test     # the table of a long run
//   COHORT_FUZZ_SEED=17 build/dev/tests/step_fuzz_test           # one program, printed
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <sstream>

#include "cohort/testing/fuzz_range.h"
#include "tests/parity/step_fuzz/cluster_side.h"

namespace cohort::parity {
namespace {

using Kind = Verdict::Kind;

// An error's first line without names and numbers, which differ from program to program.
std::string reason_of(const std::string& error) {
  std::string reason;
  for (const char letter : error.substr(
           error.find("cannot trace") == std::string::npos ? 0 : error.find("cannot trace"))) {
    if (letter == '\n' || reason.size() > 160) break;
    if (std::isdigit(static_cast<unsigned char>(letter)) == 0) reason += letter;
  }
  return reason.substr(0, reason.find("; op #"));
}

// Counts and prints. Used from one thread.
class Table {
 public:
  void add(std::uint64_t seed, const Verdict& verdict) {
    ++programs_;
    ++kinds_[verdict.kind];
    if (verdict.kind == Kind::refused) {
      auto& seeds = refusals_[reason_of(verdict.text)];
      seeds.push_back(seed);
    }
    if (verdict.kind != Kind::equal) return;
    for (std::size_t i = 0; i < kFeatureCount; ++i) features_.at(i) += verdict.features[i] ? 1 : 0;
  }

  std::uint64_t count(Kind kind) const {
    const auto found = kinds_.find(kind);
    return found == kinds_.end() ? 0 : found->second;
  }
  // The share of programs with equal results among those that run eagerly.
  double share_that_runs() const {
    return static_cast<double>(count(Kind::equal)) /
           static_cast<double>(programs_ - count(Kind::eager_throws));
  }
  // Features that fewer than `least` of the programs that ran have.
  std::string rarer_than(std::uint64_t least) const {
    std::string names;
    for (std::size_t i = 0; i < kFeatureCount; ++i) {
      if (features_.at(i) >= least) continue;
      names += std::string(name_of(static_cast<Feature>(i))) + " (" +
               std::to_string(features_.at(i)) + "), ";
    }
    return names;
  }
  std::string text() const {
    std::ostringstream text;
    text << programs_ << " programs: " << count(Kind::equal) << " equal, " << count(Kind::refused)
         << " refused, " << count(Kind::eager_throws) << " that throw eagerly and traced, "
         << count(Kind::differs) << " that differ, " << count(Kind::fails) << " that fail, "
         << count(Kind::accepts_errors) << " that run though they throw eagerly, "
         << count(Kind::warns) << " that warn of an escape\n";
    for (const auto& [reason, seeds] : refusals_) {
      text << "  refused " << seeds.size() << " times: " << reason << " (seeds";
      for (std::size_t i = 0; i < std::min<std::size_t>(seeds.size(), 5); ++i)
        text << ' ' << seeds[i];
      text << ")\n";
    }
    for (std::size_t i = 0; i < kFeatureCount && programs_ > 1; ++i) {
      text << "  " << features_.at(i) << " programs that ran: " << name_of(static_cast<Feature>(i))
           << '\n';
    }
    return text.str();
  }

 private:
  std::uint64_t programs_ = 0;
  std::map<Kind, std::uint64_t> kinds_;
  std::map<std::string, std::vector<std::uint64_t>> refusals_;
  std::array<std::uint64_t, kFeatureCount> features_{};
};

TEST(StepFuzz, TracedStepsEqualEagerOnes) {
  at::set_num_threads(1);  // as on a worker: LibTorch 2's order of additions depends on it
  const testing::FuzzRange range = testing::fuzz_range(60);
  ClusterSide cluster;
  Table table;
  for (std::uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    Program program = random_program(seed);
    Verdict verdict = cluster.compare(program);
    table.add(seed, verdict);
    if (range.count == 1) std::cout << to_string(program) << verdict.text << '\n';
    if (!verdict.is_failure()) continue;
    program = shrunk(cluster, std::move(program), verdict);
    ADD_FAILURE() << "COHORT_FUZZ_SEED=" << seed << ": " << verdict.text << "\n"
                  << to_string(program);
  }
  std::cout << table.text();
  if (range.count < 50) return;
  EXPECT_GE(table.share_that_runs(), 0.9);
  // Some features are too rare for a short run.
  if (range.count < 2000) return;
  EXPECT_EQ(table.rarer_than(range.count / 20), "");
}

}  // namespace
}  // namespace cohort::parity
