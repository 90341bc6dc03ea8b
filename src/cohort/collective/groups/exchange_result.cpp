// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <span>
#include <utility>

#include "cohort/collective/group.h"
#include "cohort/core/error_bytes.h"

namespace cohort::collective {

std::vector<Bytes> exchange_result(Group& group, const std::function<Bytes()>& make,
                                   std::string_view what, Deadline deadline) {
  ByteWriter mine;
  try {
    const Bytes made = make();
    write_optional_error(mine, std::nullopt);
    mine.blob(made);
  } catch (...) {
    write_optional_error(mine, current_error());
  }
  std::vector<Bytes> all = group.exchange(mine.take(), what, deadline);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    ByteReader reader(all[rank], what);
    if (std::optional<Error> error = read_optional_error(reader))
      throw std::move(*error).at(group.member_name(static_cast<int>(rank)));
    const std::span<const std::byte> made = reader.blob();
    all[rank] = Bytes(made.begin(), made.end());
  }
  return all;
}

}  // namespace cohort::collective
