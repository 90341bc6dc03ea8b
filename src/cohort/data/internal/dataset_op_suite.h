// SPDX-License-Identifier: Apache-2.0
// For tests alone: elements as text, and the suite that every op passes.
//
//   INSTANTIATE_TEST_SUITE_P(Foo, DatasetOp, ::testing::Values(DatasetOpCase{"foo", [] { return
//   range(9).foo(); }}));
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// "3", "[0, 1]", "([[1.5], [2]], {a: 7})", "['x', 'y']".
std::string show(const Nest& element);
// The next elements up to the end, or `count_max`. An error is one item: "error invalid_argument".
std::vector<std::string> drain(Iterator& iterator, std::size_t count_max = 10'000);
std::vector<std::string> elements_of(const Dataset& dataset, std::size_t count_max = 10'000);
// The elements of a dataset of scalars.
std::vector<std::int64_t> scalars_of(const Dataset& dataset, std::size_t count_max = 100'000);
// What `call` throws; a test failure if nothing.
Error error_of(const std::function<void()>& call);

// A pipeline of row numbers, and the same elements without a row store: both kinds of stages are
// tested.
Dataset rows(std::int64_t count);
Dataset tensors(std::int64_t count);

// The numbers 0, 1, … where `bad` is an error, data_loss.
Dataset failing_at(std::int64_t bad, std::int64_t count);
// A generator of these items, made anew for each iteration.
Dataset generated(std::vector<Nest> items, ElementSpec spec);
Dataset shipped(const Dataset& dataset);

struct DatasetOpCase {
  std::string name;
  // Builds the pipeline anew; two of them yield the same elements.
  std::function<Dataset()> make;
  bool can_ship = true;
  bool can_save = true;
  // Iterators that run at once do not get in each other's way, as writers of one cache do.
  bool is_independent = true;
};

inline void PrintTo(const DatasetOpCase& op, std::ostream* out) { *out << op.name; }

class DatasetOp : public ::testing::TestWithParam<DatasetOpCase> {
 protected:
  Dataset made() const { return GetParam().make(); }
};

}  // namespace cohort::data
