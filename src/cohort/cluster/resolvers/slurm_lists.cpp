// SPDX-License-Identifier: Apache-2.0
// The lists that Slurm writes into variables.
#include <algorithm>
#include <charconv>
#include <utility>

#include "cohort/cluster/resolvers.h"
#include "cohort/cluster/resolvers/integer_text.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

// More than any cluster has, and less than fills a memory.
constexpr std::size_t kItemsMax = 1'000'000;
constexpr std::string_view kDigits = "0123456789";

// A list of Slurm's, for messages, and the place up to which it was read.
class SlurmList {
 public:
  SlurmList(std::string_view text, const char* expected) : text_(text), expected_(expected) {}

  bool is_at_end() const { return at_ == text_.size(); }
  bool takes(char c) {
    const bool is_there = !is_at_end() && text_[at_] == c;
    if (is_there) ++at_;
    return is_there;
  }
  std::string_view take_until(std::string_view stops) {
    const std::size_t end = std::min(text_.find_first_of(stops, at_), text_.size());
    return text_.substr(std::exchange(at_, end), end - at_);
  }
  // The digits themselves, since their number counts.
  std::string_view take_digits() {
    const std::size_t end = std::min(text_.find_first_not_of(kDigits, at_), text_.size());
    const std::string_view digits = text_.substr(at_, end - at_);
    if (digits.empty() || digits.size() > 18) refuse();
    at_ = end;
    return digits;
  }
  [[noreturn]] void refuse() const {
    internal::throw_error(ErrorCode::invalid_argument, "[cluster.slurm] expected ", expected_,
                          ", got ", internal::quote(text_), ", which is wrong at character ",
                          at_ + 1);
  }
  void check_count(std::size_t count) const {
    COHORT_CHECK(count <= kItemsMax, ErrorCode::invalid_argument, "[cluster.slurm] expected ",
                 expected_, ", of at most ", kItemsMax, " items, got more in ",
                 internal::quote(text_));
  }

 private:
  const std::string_view text_;
  const char* const expected_;
  std::size_t at_ = 0;
};

std::int64_t number_of(std::string_view digits) {
  std::int64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

// Reads "01-03,7]": "01", "02", "03", "7".
std::vector<std::string> take_ranges(SlurmList& list) {
  std::vector<std::string> numbers;
  do {
    const std::string_view first = list.take_digits();
    const std::int64_t last = list.takes('-') ? number_of(list.take_digits()) : number_of(first);
    for (std::int64_t i = number_of(first); i <= last; ++i) {
      std::string number = std::to_string(i);
      if (number.size() < first.size()) number.insert(0, first.size() - number.size(), '0');
      numbers.push_back(std::move(number));
      list.check_count(numbers.size());
    }
  } while (list.takes(','));
  if (!list.takes(']')) list.refuse();
  return numbers;
}

// Each of `names` with each of `ends`, the ends of one name together.
std::vector<std::string> combined(const SlurmList& list, const std::vector<std::string>& names,
                                  const std::vector<std::string>& ends) {
  list.check_count(names.size() * ends.size());
  std::vector<std::string> result;
  for (const std::string& name : names)
    for (const std::string& end : ends) result.push_back(name + end);
  return result;
}

// Reads one item, up to a comma outside of brackets.
std::vector<std::string> take_hosts(SlurmList& list) {
  std::vector<std::string> hosts{std::string(list.take_until("[],"))};
  if (!list.takes('[')) {
    if (hosts.front().empty()) list.refuse();
    return hosts;
  }
  while (true) {
    hosts = combined(list, hosts, take_ranges(list));
    const std::string between(list.take_until("[],"));
    if (list.takes('[')) {
      hosts = combined(list, hosts, {between});
    } else if (between.empty()) {
      return hosts;
    } else {
      list.refuse();
    }
  }
}

}  // namespace

std::vector<std::string> expand_slurm_hosts(std::string_view text) {
  SlurmList list(text, "a list of hosts such as 'n[01-03,7],m5'");
  std::vector<std::string> hosts;
  if (text.empty()) return hosts;
  do {
    for (std::string& host : take_hosts(list)) hosts.push_back(std::move(host));
    list.check_count(hosts.size());
  } while (list.takes(','));
  if (!list.is_at_end()) list.refuse();
  return hosts;
}

std::vector<std::int64_t> expand_slurm_tasks(std::string_view text) {
  SlurmList list(text, "numbers of tasks such as '3(x2),2'");
  std::vector<std::int64_t> tasks;
  do {
    const std::int64_t number = number_of(list.take_digits());
    std::int64_t times = 1;
    if (list.takes('(')) {
      if (!list.takes('x')) list.refuse();
      times = number_of(list.take_digits());
      if (!list.takes(')')) list.refuse();
    }
    list.check_count(tasks.size() + static_cast<std::size_t>(times));
    tasks.insert(tasks.end(), static_cast<std::size_t>(times), number);
  } while (list.takes(','));
  if (!list.is_at_end()) list.refuse();
  return tasks;
}

}  // namespace cohort
