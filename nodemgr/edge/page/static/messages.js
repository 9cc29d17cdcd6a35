// The messages of the page, a function for each row of nodemgr/messages/page.py.
// Made by `python -m nodemgr.cli.presentation.generated_messages js`. Not to be edited.

export const pageManagerAway = ({ since }) =>
  `The manager is away since ${since}; running tasks go on: this page follows when it is back.`;

export const pageServerAway = ({ since }) =>
  `The page's server is away since ${since}: it is tried again every second.`;

export const pageIsLive = () =>
  `The page is live again.`;

export const pageTokenMissing = () =>
  `The field for the token is empty: paste the token that nodemgr web token has printed.`;

export const pageNoToken = () =>
  `This is no token: paste one of the form nmw-…, as nodemgr web token prints it.`;

export const pageTaskReleased = ({ task }) =>
  `Task ${task} is released.`;

export const pageWithdrawn = ({ id }) =>
  `${id} is withdrawn.`;

export const pageQuotaSet = ({ env }) =>
  `The quota of ${env} is set.`;

export const pageGpusMissing = () =>
  `The number of GPUs is empty: write how many the environment may hold (0 is none).`;

export const pageEnvMissing = () =>
  `The name is empty: give the environment a name.`;

export const pageNoNumber = ({ field, text }) =>
  `${field}: ${text} is not a number of at least 0; write one such as 2.5.`;

export const pageNoWholeNumber = ({ field, text }) =>
  `${field}: ${text} is not a whole number of at least 0; write one such as 2.`;

export const pagePastUnrecorded = () =>
  `The use of the past is not recorded here.`;

export const pageNoTask = () =>
  `No task holds a GPU.`;

export const pageNothingWaits = () =>
  `No request waits.`;

export const pageNoJobRuns = () =>
  `No job runs.`;

export const pageNoJobEnded = () =>
  `No job has ended in this time.`;

export const pageNoEnv = () =>
  `There is no environment yet.`;

export const pageNoLease = () =>
  `No lease in this time.`;

export const pageNothingFound = ({ text }) =>
  `Nothing here holds “${text}”.`;
