// SPDX-License-Identifier: Apache-2.0
// Who is in the next group, and when it begins.
#include "cohort/collective/internal/formation/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace cohort::collective::formation {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = AbsentTask::Kind;
using Phase = Roster::Phase;

constexpr TimePoint kStart{};

Member member(int task, std::uint64_t incarnation = 1) { return {task, incarnation}; }

PastGroup past(std::uint64_t number, const std::vector<int>& tasks) {
  PastGroup group{.number = number};
  for (const int task : tasks) group.members.push_back(member(task));
  return group;
}

Join survivor_of(const PastGroup& group) { return {.last = group, .number_max = group.number}; }

std::vector<int> tasks_of(const Proposal& proposal) {
  std::vector<int> tasks;
  for (const ProposedMember& one : proposal.members) tasks.push_back(one.who.task);
  return tasks;
}

std::vector<bool> is_new(const Proposal& proposal) {
  std::vector<bool> all;
  for (const ProposedMember& one : proposal.members) all.push_back(one.is_new);
  return all;
}

TEST(Roster, WaitsForAllTheFirstTime) {
  Roster roster(3, member(0), {}, kStart);
  roster.join(member(2), {}, 1, kStart);
  roster.update({{1, {Kind::dead}}}, kStart + 1h);
  EXPECT_EQ(roster.phase(), Phase::gathering);
  EXPECT_THAT(roster.missing(), ElementsAre(1, 2));  // 2 was silent for too long
  roster.join(member(1), {}, 2, kStart + 1h);
  roster.join(member(2), {}, 1, kStart + 1h);
  roster.update({}, kStart + 1h);
  EXPECT_EQ(roster.phase(), Phase::preparing);
  EXPECT_EQ(roster.proposal().number, 1u);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(true, true, true));
}

TEST(Roster, CommitsWhenAllHaveAccepted) {
  Roster roster(2, member(0), {}, kStart);
  roster.join(member(1), {}, 1, kStart);
  roster.update({}, kStart);
  roster.update({}, kStart);
  EXPECT_EQ(roster.phase(), Phase::preparing);
  roster.join(member(1), {.accepted = 1}, 1, kStart);
  roster.update({}, kStart);
  EXPECT_EQ(roster.phase(), Phase::committed);
  EXPECT_FALSE(roster.have_all_been_told());
  roster.note_told(member(1));
  EXPECT_TRUE(roster.have_all_been_told());
}

TEST(Roster, ProposesALargerNumberWithoutAMemberThatIsLost) {
  const Join join = survivor_of(past(4, {0, 1, 2}));
  Roster roster(3, member(0), join, kStart);
  roster.join(member(1), join, 1, kStart);
  roster.join(member(2), join, 2, kStart);
  roster.update({}, kStart);
  EXPECT_EQ(roster.proposal().number, 5u);
  EXPECT_THAT(tasks_of(roster.proposal()), ElementsAre(0, 1, 2));
  roster.leave(2);
  roster.update({{2, {Kind::dead}}}, kStart);
  EXPECT_EQ(roster.phase(), Phase::preparing);
  EXPECT_EQ(roster.proposal().number, 6u);
  EXPECT_THAT(tasks_of(roster.proposal()), ElementsAre(0, 1));
}

TEST(Roster, WaitsForMembersThatNobodyMisses) {
  const Join join = survivor_of(past(4, {0, 1, 2}));
  Roster roster(3, member(0), join, kStart);
  roster.join(member(1), join, 1, kStart);
  roster.update({{2, {Kind::idle, 4}}}, kStart);
  EXPECT_THAT(roster.missing(), ElementsAre(2));
  Join missing = join;
  missing.missed = {member(2, 7)};  // another process of that task
  roster.join(member(1), missing, 1, kStart);
  roster.update({{2, {Kind::idle, 4}}}, kStart);
  EXPECT_THAT(roster.missing(), ElementsAre(2));
  missing.missed = {member(2)};
  roster.join(member(1), missing, 1, kStart);
  roster.update({{2, {Kind::idle, 4}}}, kStart);
  EXPECT_THAT(roster.missing(), IsEmpty());
  EXPECT_EQ(roster.phase(), Phase::gathering);  // it may be about to join
  roster.join(member(1), missing, 1, kStart + 1s);
  roster.update({{2, {Kind::idle, 4}}}, kStart + 1s);
  EXPECT_THAT(tasks_of(roster.proposal()), ElementsAre(0, 1));
}

TEST(Roster, GoesOnShortlyBeforeTheDeadlineOfASurvivor) {
  Join join = survivor_of(past(4, {0, 1}));
  join.remaining_ms = 10'000;
  Roster roster(3, member(0), join, kStart);
  roster.join(member(2), {.remaining_ms = 1'000}, 1, kStart);  // new
  roster.update({}, kStart + 1s);
  EXPECT_EQ(roster.phase(), Phase::gathering);
  roster.join(member(2), {.remaining_ms = 0}, 1, kStart + 9'400ms);
  roster.update({}, kStart + 9'400ms);
  EXPECT_EQ(roster.phase(), Phase::gathering);
  roster.update({}, kStart + 9'500ms);
  EXPECT_EQ(roster.phase(), Phase::preparing);
  EXPECT_THAT(tasks_of(roster.proposal()), ElementsAre(0, 2));
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(false, true));
}

TEST(Roster, IsLeftBehindByANewerGroup) {
  const Join join = survivor_of(past(4, {0, 1, 2}));
  Roster roster(3, member(0), join, kStart);
  const Absent others{{1, {Kind::idle, 5}}, {2, {Kind::idle, 5}}};
  roster.update(others, kStart + 1h);
  EXPECT_EQ(roster.left_behind(), 5u);
  EXPECT_EQ(roster.phase(), Phase::gathering);
  roster.join(member(1), survivor_of(past(5, {1, 2})), 1, kStart + 1h);
  roster.join(member(2), survivor_of(past(5, {1, 2})), 2, kStart + 1h);
  roster.update({}, kStart + 1h);
  EXPECT_EQ(roster.proposal().number, 6u);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(true, false, false));
}

// Regression: a leader that the others had given up formed a group that had been proposed to them,
// and they formed another one with its number.
TEST(Roster, DoesNotUseANumberAgainThatWasProposed) {
  Join join = survivor_of(past(2, {1, 2}));
  join.proposed_max = 3;
  Roster roster(3, member(1), join, kStart);
  roster.join(member(2), survivor_of(past(2, {1, 2})), 1, kStart);
  roster.update({{0, {Kind::dead}}}, kStart);
  EXPECT_EQ(roster.left_behind(), 0u);  // no group 3 is known
  EXPECT_EQ(roster.proposal().number, 4u);
  EXPECT_EQ(roster.proposal().last, 2u);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(false, false));
}

// It has entered group 3, which the others never heard of, and has not got their values there.
TEST(Roster, AMemberThatCouldNotConnectIsNewAgain) {
  Join behind = survivor_of(past(1, {0, 1, 2}));
  behind.number_max = 2;
  behind.proposed_max = 3;
  Roster roster(3, member(0), behind, kStart);
  roster.update({{1, {Kind::dead}}, {2, {Kind::dead}}}, kStart + 1h);
  EXPECT_EQ(roster.phase(), Phase::gathering);
  EXPECT_EQ(roster.left_behind(), 2u);
  Join join = survivor_of(past(2, {1, 2}));
  join.proposed_max = 3;
  roster.join(member(1), join, 1, kStart + 1h);
  roster.join(member(2), join, 2, kStart + 1h);
  roster.update({}, kStart + 1h);
  EXPECT_EQ(roster.proposal().number, 4u);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(true, false, false));
}

// Two sides of a network that was divided have formed groups with the same number.
TEST(Roster, DoesNotMixTheValuesOfTwoGroupsWithOneNumber) {
  Roster roster(4, member(0), survivor_of(past(5, {0, 1})), kStart);
  roster.join(member(1), survivor_of(past(5, {0, 1})), 1, kStart);
  roster.join(member(2), survivor_of(past(5, {2, 3})), 2, kStart);
  roster.join(member(3), survivor_of(past(5, {2, 3})), 3, kStart);
  roster.update({}, kStart);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(false, false, true, true));
}

TEST(Roster, AProcessWithoutValuesIsNew) {
  Roster roster(2, member(1), survivor_of(past(5, {0, 1})), kStart);
  roster.join(member(0), {}, 1, kStart);
  roster.update({}, kStart);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(true, false));
}

TEST(Roster, AProcessThatStartedAgainReplacesItsPredecessor) {
  const Join join = survivor_of(past(4, {0, 1}));
  Roster roster(2, member(0), join, kStart);
  roster.join(member(1), join, 1, kStart);
  roster.join(member(1, 2), {}, 2, kStart);
  roster.leave(1);  // the old connection breaks later
  roster.update({}, kStart);
  EXPECT_EQ(roster.phase(), Phase::preparing);
  EXPECT_THAT(is_new(roster.proposal()), ElementsAre(false, true));
}

}  // namespace
}  // namespace cohort::collective::formation
