// SPDX-License-Identifier: Apache-2.0
// For tests only: elements as text, and the conformance suite that every op must pass.
//
//   INSTANTIATE_TEST_SUITE_P(
//       Foo, DatasetOp, ::testing::Values(DatasetOpCase{"foo", [] { return rows(9).foo(); }}));
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
// The elements up to the end, at most `count_max`. An error is one item: "error invalid_argument".
std::vector<std::string> drain(Iterator& iterator, std::size_t count_max = 10'000);
std::vector<std::string> elements_of(const Dataset& dataset, std::size_t count_max = 10'000);
// The elements of a dataset of scalars.
std::vector<std::int64_t> scalars_of(const Dataset& dataset, std::size_t count_max = 100'000);
// The error that `call` throws; the test fails if it throws none.
Error error_of(const std::function<void()>& call);

// The same elements from a row stage and from an element stage, to test both kinds.
Dataset rows(std::int64_t count);
Dataset tensors(std::int64_t count);

// The numbers 0, 1, …, with a data_loss error in place of `bad`.
Dataset failing_at(std::int64_t bad, std::int64_t count);
// A from_generator() dataset of these items.
Dataset generated(std::vector<Nest> items, ElementSpec spec);
Dataset shipped(const Dataset& dataset);

struct DatasetOpCase {
  std::string name;
  // Builds a new pipeline; all of them yield the same elements.
  std::function<Dataset()> make;
  bool can_ship = true;
  bool can_save = true;
  // False if concurrent iterators affect each other, as writers of one cache do.
  bool is_independent = true;
  bool is_empty = false;  // whether it yields no element
};

inline void PrintTo(const DatasetOpCase& op, std::ostream* out) { *out << op.name; }

class DatasetOp : public ::testing::TestWithParam<DatasetOpCase> {
 protected:
  Dataset made() const { return GetParam().make(); }
};

}  // namespace cohort::data
