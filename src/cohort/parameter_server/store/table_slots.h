// SPDX-License-Identifier: Apache-2.0
// The slots that optimizers have for the rows of a table.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/parameter_server/store/row_segments.h"
#include "cohort/variable/update_rule.h"

namespace cohort::parameter_server {

// Thread-compatible.
class TableSlots {
 public:
  // `row`: zeros like one row of the table `name`, which messages name. The segments have 2^`shift`
  // rows.
  TableSlots(std::string name, at::Tensor row, int shift);

  // Makes the slots at the first update of an optimizer, for all rows below `rows_end`. Throws
  // already_exists if this optimizer has slots of another rule.
  void make(std::string_view optimizer, const variable::UpdateRule& rule,
            std::span<const double> hyper, std::int64_t rows_end);
  // Memory for more rows, whose slots are arbitrary until reset().
  void grow_to(std::int64_t rows_end);
  // Gives these rows the slots that a first update finds.
  void reset(std::span<const std::uint32_t> rows);
  // Calls update(slots) with copies of the slots of these rows, and takes what it changes.
  void update(std::string_view optimizer, std::span<const std::uint32_t> rows,
              const std::function<void(std::span<at::Tensor>)>& update);
  // Whether the optimizer has no slot with one number for the whole table. Such a number changes in
  // each call of a rule, so all rows of an update must be in one call.
  bool are_of_rows(std::string_view optimizer) const;

  std::vector<internal::OptimizerSlots> export_rows(std::span<const std::uint32_t> rows) const;
  // make() for them, without the hyperparameters, which the next make() knows.
  void make_imported(std::span<const internal::OptimizerSlots> slots, std::int64_t rows_end);
  void import_rows(std::span<const internal::OptimizerSlots> slots,
                   std::span<const std::uint32_t> rows);
  void clear() { optimizers_.clear(); }
  // The slots that exist, with copies of those that are one number. `rows` gets the others, in this
  // order, which live until clear(); their tensors have one row with arbitrary content.
  std::vector<internal::OptimizerSlots> layout(std::vector<const RowSegments*>& rows) const;

  std::uint64_t row_bytes() const;
  std::uint64_t bytes() const;

 private:
  // One number for the whole table, such as a count of steps, or one row for each row.
  struct Slot {
    at::Tensor whole = {};
    std::optional<RowSegments> rows = {};
  };
  struct OfOptimizer {
    std::string rule;
    std::vector<Slot> slots;
    bool has_first = true;  // whether reset() knows what to write
    // These were reset when it did not, and were not imported since.
    std::vector<bool> unknown_rows = {};
    std::size_t num_unknown = 0;  // of these, since each part of an export asks
  };
  // Throws failed_precondition if an optimizer has rows whose slots are unknown.
  void check_known(std::string_view optimizer, const OfOptimizer& own) const;
  std::vector<at::Tensor> first_slots(const variable::UpdateRule& rule,
                                      std::span<const double> hyper) const;

  const std::string name_;
  const at::Tensor row_;
  const int shift_;
  std::map<std::string, OfOptimizer, std::less<>> optimizers_;
};

// Throws not_found for an unknown rule, and invalid_argument unless the others have the slots of
// their rules for the value of `owner`: "table 'users'".
void check_imported_slots(std::span<const internal::OptimizerSlots> slots, const at::Tensor& value,
                          const std::string& owner);

}  // namespace cohort::parameter_server
