// SPDX-License-Identifier: Apache-2.0
// Measures contenders in turn, and reports other load on the machine.
//
//   Bench bench(argc, argv);
//   bench.compare("no-op closures", {.unit = "/s", .is_rate = true}, {{"cohort", …}, {"gRPC", …}});
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace cohort::bench {

// One way to do the work; measure() does it once and returns one figure.
struct Contender {
  std::string name;
  std::function<double()> measure;
};

struct Comparison {
  std::string unit;
  bool is_rate = false;      // greater figures are better
  std::size_t baseline = 0;  // index of the contender that ratios refer to
};

// Median, minimum and maximum of some figures.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};
Spread spread_of(std::vector<double> figures);

// The figure at `share` (such as 0.99) of the sorted figures.
double percentile(std::vector<double> figures, double share);

// CPU time since construction, of this program and of others. Used from one thread.
class Meter {
 public:
  Meter();
  // "steal 0.4 %, others 0.9 of 2 cores, load 3.1"; this process and its children do not count as
  // others.
  std::string say() const;

 private:
  struct Reading {
    double busy = 0, steal = 0, total = 0, own = 0;
  };
  static Reading read();
  Reading start_;
};

// Reads --rounds=N (default 5) and --benchmark_filter=REGEX; ignores other options of Google
// Benchmark. Used from one thread.
class Bench {
 public:
  Bench(int argc, char** argv);

  int rounds() const { return rounds_; }
  bool wants(const std::string& title) const;
  // Runs one warm-up, then each contender once per round, in turn. Prints a line for each with the
  // ratio to the baseline (above 1: better than the baseline).
  void compare(const std::string& title, const Comparison& comparison,
               const std::vector<Contender>& contenders) const;

 private:
  int rounds_ = 5;
  std::string filter_;
};

// Seconds that `work` takes.
double seconds_of(const std::function<void()>& work);

// Ends the program with a message if `is_equal` is false: two contenders disagree.
void require(bool is_equal, const std::string& what);

}  // namespace cohort::bench
