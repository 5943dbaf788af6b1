/** A schedule as plain data. */
export interface ScheduleData {
    kind: string;
    [setting: string]: unknown;
}
/** The learning rate after `step` updates. */
export type Schedule = (step: number) => number;
/** The schedule that data describes. */
export declare function scheduleOf(data: ScheduleData): Schedule;
