// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "cohort/data/rebatch.h"
#include "tests/conformance/kinds.h"
#include "tests/conformance/pipeline.h"
#include "tests/conformance/script.h"
#include "tests/conformance/values.h"

namespace cohort::conformance {

Json run_dataset(const Json& test_case) {
  const auto state = std::make_shared<CaseState>(member_or(test_case, "files", Json()));
  Json outcome = Json::object();
  std::optional<Dataset> dataset;
  std::unique_ptr<Subject> subject;
  try {
    dataset = build_pipeline(member(test_case, "pipeline"), state);
    subject = subject_of(*dataset);
    // A dataset function that could not be tried on an element is refused here (decision 0013).
    subject->describe(outcome);
  } catch (...) {
    return {{"build_error", caught_error()}};
  }
  if (member_or(test_case, "report_options", false)) {
    outcome["options"] = json_of(dataset->options());
  }
  if (member_or(test_case, "report_batch_size", false)) {
    try {
      outcome["batch_size"] = infer_batch_size(*dataset);
    } catch (...) {
      outcome["batch_size"] = caught_error();
    }
  }
  run_actions(test_case, *subject, *state, outcome);
  return state->directory->without_path(outcome);
}

}  // namespace cohort::conformance
